// Package builtin answers for an instance itself: the services of the deployment
// "conduit", which are called as any element's are, at
// <instance>://conduit/conduit/<service>. proto/conduit/v1/services.proto says
// what they take and give; protobuf and JSON are both understood.
//
// What may be asked depends on where the question comes in, which is a [Door]:
// operators ask everything at the management socket, others ask who is there.
//
// It knows neither hosts nor links' carriers: what it tells it gets from the small
// interfaces in [Options]. Those that are nil belong to parts that an instance
// does not have, and the methods that need them say so (code unimplemented).
package builtin
