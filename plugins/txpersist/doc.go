// Command txpersist is the store of resources in transactions, as an element.
//
// Element txpersist, service conduit.persist.ResourceStore. Its messages are JSON;
// bytes are base64 in them. It keeps one file, resources.db, in its data directory,
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
//
//	Transact         {scope, operations}           {results}: all operations or none, in order
//	List             {path, cursor}                a stream of {path, id, cursor}
//	Read             {id or path}                  a stream of {size, data}
//	Write            upload of {path, id, data}    {id, size}; path and id in the first
//	Transaction      duplex: {scope}, then operations, then {"op":"commit"}; a result each
//
//	Check            nothing                       nothing, or data_loss
//	Backup           nothing                       a stream of bytes: the file at one moment
//	Stats            nothing                       what the store is doing
//
// In a batch, and in an interactive transaction, the operations are written in lower
// case (exists, lookup, remove_matching, ...). One more, expect, ends it with
// failed_precondition unless a path or an id is there (or absent is set and it is not),
// and has these contents, if data is given.
//
// An interactive transaction ends by commit; whatever else ends the call is a rollback:
// the end of the upload, an error of an operation, the attribute idle (30s) without an
// operation, a lost link.
package main
