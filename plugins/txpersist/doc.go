// Command txpersist is the store of resources in transactions, as an element.
//
// Element txpersist, service conduit.persist.ResourceStore. Its messages are
// those of proto/conduit/persist, as protobuf or as JSON; bytes are base64 in that, and
// 64-bit numbers texts in what comes back. It keeps one file, resources.db, in its data directory,
// bound to its node: the instance and the deployment. So the instance must keep its id
// over restarts, as a worker does.
//
// All methods are remote; those of the last group ask for a superuser, the others for
// a user. An operation is {op, path, id, data, offset, limit, cursor, absent, task,
// due_ms}, of which each takes what it needs; a result is {id, exists, removed, data,
// paths, ids, listings, next, tasks}. The methods of the first group are the operation
// of that name, alone in a transaction.
//
//	method           takes                         gives
//	Exists           {id}                          {exists}
//	Lookup           {path}                        {id}
//	Paths            {id}                          {paths}
//	Load             {id or path}                  {data}
//	Tasks            {id}                          {tasks}
//	Page             {path, limit, cursor}         {listings, next}
//	Save             {path, id, data}              {id}; without an id it gets a new one
//	Put              {path, id, data}              {id, created}; Save or, if there is one, Update
//	Update           {id or path, data}            {id}
//	Append           {id or path, data}            {id}
//	WriteAt          {id or path, offset, data}    {id}
//	LinkNew          {path, id}                    {id}; no contents
//	Link             {id, path}                    {id}
//	Unlink           {path}                        {id, removed}
//	Remove           {id}                          {id}
//	RemoveMatching   {path, limit}                 {ids}
//	CreateTask       {id, task, due_ms}            {task}; without a task it gets a new one
//	DeleteTask       {task}                        nothing
//	FinishTask       {task, due_ms}                {removed}; it is gone, or had another time: false
//
//	Transact         {scope, operations, key}      {results}: all operations or none, in order
//	List             {path, cursor, limit}         a stream of {path, id, cursor, more}: with a limit, so many in a message
//	Read             {id or path}                  a stream of {size, data}
//	Write            upload of {path, id, data}    {id, size}; path and id in the first
//	Transaction      duplex: {scope, read_only}, then operations, then {"op":"commit"}; a result each
//	Watch            {path, revision}              a stream of {kind, changes, revision}
//	WatchTasks       {path, window, lease_ms}      a stream of {id, due_ms}
//
//	Check            nothing                       nothing, or data_loss
//	Backup           nothing                       a stream of bytes: the file at one moment
//	Stats            nothing                       a StatsReply: what the store is doing
//
// In a batch, and in an interactive transaction, the operations are written in lower
// case (exists, lookup, remove_matching, ...). One more, expect, ends it with
// failed_precondition unless a path or an id is there (or absent is set and it is not),
// and has these contents, if data is given.
//
// With a key, of up to 64 bytes, a method of the first group that writes and Transact are
// done once: who asks again for the same, because it does not know what became of it,
// gets the first answer. Another request with a key that was used is failed_precondition,
// key_reused. Keys are each user's own, are kept for 24 h, the last 100,000 of them, and
// are committed with what they stand for; an answer is at most 64 KiB.
//
// Watch tells what a pattern matches and what becomes of it: events of the kind state, in
// which changes are a part of what there is; synced, now it was all; changes, one commit
// each; and resync, when some were missed: the state comes anew. A revision is one to go
// on behind.
//
// WatchTasks delivers the tasks that are due, of the resources at a path that the pattern
// matches, each to one watch at a time: until FinishTask or DeleteTask ends it, alone or
// in a transaction with the work itself. It is delivered again when the watch ends or has
// had it for lease_ms (30 s).
//
// Limits are attributes (limits.go, docs/persistence.md): a refusal is
// resource_exhausted, limit, with the attribute and its value in details.limit and
// details.max.
//
// An interactive transaction ends by commit; whatever else ends the call is a rollback:
// the end of the upload, an error of an operation, the attribute idle (30s) without an
// operation, a lost link.
package main
