// Package fleet owns what is desired: the services, runtimes and models
// people applied, the revision pinned for each service, and the reconciler
// that makes a platform agree with them.
package fleet
