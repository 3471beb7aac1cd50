// Package etcdstore keeps users and sessions in etcd, for the instances of a cluster
// and the commands user and session beside them.
//
// Every operation is one or a few transactions of etcd, each of which holds only while
// the store is still the one that was opened, and of what it read nothing has changed;
// otherwise it is done again. So it needs no locks, and nothing is left half done by a
// process that dies.
//
// Below the prefix there are
//
//	store                  the store's own record: format and id
//	generation             its version, as etcd counts writes of a key, is the generation, and its value the id of the user whom that move was about
//	users/<id>             a user
//	names/<name>           the id of the user of that name
//	sessions/<id>          a session, with a lease
//	of/<user>/<session>    which sessions a user has, with the same lease
//
// A user's record has an epoch, at random, and each session that of its user. All
// sessions of a user end by a new epoch, however many there are: etcd limits what one
// transaction may do. What is left of them is removed behind that, or by its lease.
package etcdstore
