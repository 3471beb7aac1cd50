// Package etcd tests the auth store in etcd against servers of etcd that run within the
// tests. It is a module of its own, so that no instance has etcd's server in its go.mod.
package etcd
