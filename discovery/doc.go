// Package discovery says which hosts may be instances of the cluster: network
// addresses, not instances, and without a word on whether they are alive, which
// is the registry's to find out.
package discovery
