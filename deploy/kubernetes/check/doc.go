// Package check holds the files of deploy/kubernetes to the types of the Kubernetes API,
// and to each other. It is a module of its own, so that the API stays out of ours.
//
// No tool that talks to a cluster, or fetches schemas from the network, is needed for it:
// the types that kubectl and the API server decode into are a Go module.
package check
