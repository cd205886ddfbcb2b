// Package modelrepository is inference.model_repository.ModelRepositoryService,
// generated from model_repository.proto by package oip's go:generate. It is
// the repository calls of package oip under a deprecated name.
package modelrepository
