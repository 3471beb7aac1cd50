// Package boltstore keeps users and sessions in a file that the instances of one
// machine share, and the commands user and session with them.
//
// The file is a bbolt database. bbolt expects one process to own a database; here
// nobody does: the file is opened and locked for each operation, and closed after
// it. Operations that only read share the lock. What every instance asks four
// times a second, the generation, mostly takes no lock at all: bbolt writes a new
// page of meta data with each commit, so if those pages are what they were,
// nothing was written.
package boltstore
