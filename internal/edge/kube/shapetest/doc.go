// Package shapetest has a real API server judge the objects of package shape,
// which is pure and can start none.
package shapetest
