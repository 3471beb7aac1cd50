// Package api has the messages of the service conduit.persist.ResourceStore as Go programs
// work with them, with ids and paths of their own types. What travels are the messages of
// proto/conduit/persist, as protobuf or as JSON; encoding/json writes and reads these types as
// that JSON. What the methods take and give of them is listed in plugins/txpersist/doc.go.
package api

import "github.com/elemental-conduit/conduit/address"

// Service is the name of the service, and Element the usual name of its element.
const (
	Service = "conduit.persist.ResourceStore"
	Element = "txpersist"
)

// The operations of a transaction.
const (
	OpExists         = "exists"
	OpLookup         = "lookup"
	OpPaths          = "paths"
	OpLoad           = "load"
	OpTasks          = "tasks"
	OpPage           = "page"
	OpExpect         = "expect"
	OpSave           = "save"
	OpUpdate         = "update"
	OpPut            = "put"
	OpAppend         = "append"
	OpWriteAt        = "write_at"
	OpLinkNew        = "link_new"
	OpLink           = "link"
	OpUnlink         = "unlink"
	OpRemove         = "remove"
	OpRemoveMatching = "remove_matching"
	OpCreateTask     = "create_task"
	OpDeleteTask     = "delete_task"
	OpFinishTask     = "finish_task"
	OpCommit         = "commit" // of an interactive transaction only
)

// The reasons of the errors that the element makes itself.
const (
	ReasonBadArgument        = "bad_argument"
	ReasonOtherNode          = "other_node"
	ReasonNotDeclared        = "not_declared"
	ReasonNotFound           = "resource_not_found"
	ReasonNoContents         = "no_contents"
	ReasonDuplicate          = "duplicate"
	ReasonNoTask             = "no_such_task"
	ReasonEnded              = "transaction_ended"
	ReasonExpired            = "transaction_expired"
	ReasonIdle               = "transaction_idle"
	ReasonPreconditionFailed = "precondition_failed"
	ReasonKeyReused          = "key_reused"
	ReasonLimit              = "limit"
	ReasonFull               = "store_full"
	ReasonReadOnly           = "store_read_only"
	ReasonDamaged            = "store_damaged"
	ReasonStorage            = "storage_failed"
	ReasonOutcome            = "outcome_unknown"
)

// MaxPage bounds the entries of a page, and what one RemoveMatching removes.
const MaxPage = 1000

// MaxKey is the length of the longest key of an operation, in bytes.
const MaxKey = 64

// Operation is one step of a transaction, or the request of a method.
type Operation struct {
	Op     string              `json:"op,omitempty"`
	Path   *address.Path       `json:"path,omitempty"`
	ID     *address.ResourceID `json:"id,omitempty"`
	Data   []byte              `json:"data,omitempty"`
	Offset int64               `json:"offset,omitempty,string"`
	Limit  int                 `json:"limit,omitempty"`
	Cursor string              `json:"cursor,omitempty"`
	Absent bool                `json:"absent,omitempty"`
	Task   *address.TaskID     `json:"task,omitempty"`
	DueMS  int64               `json:"due_ms,omitempty,string"` // Unix milliseconds
	// Key has a method that writes, and is called again with the same, give the first
	// answer once more instead of doing it again.
	Key string `json:"key,omitempty"`
	// Scope declares what an interactive transaction may touch, in its first message;
	// ReadOnly has it read a snapshot.
	Scope    *Scope `json:"scope,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Scope is what a transaction may touch.
type Scope struct {
	Paths []address.Path       `json:"paths,omitempty"`
	IDs   []address.ResourceID `json:"ids,omitempty"`
}

// Result is what an operation gives.
type Result struct {
	ID       *address.ResourceID  `json:"id,omitempty"`
	Exists   *bool                `json:"exists,omitempty"`
	Removed  *bool                `json:"removed,omitempty"`
	Created  *bool                `json:"created,omitempty"`
	Data     []byte               `json:"data,omitempty"`
	Paths    []address.Path       `json:"paths,omitempty"`
	IDs      []address.ResourceID `json:"ids,omitempty"`
	Listings []Listing            `json:"listings,omitempty"`
	Next     string               `json:"next,omitempty"`
	Tasks    []Task               `json:"tasks,omitempty"`
}

// Listing is one place of a resource.
type Listing struct {
	Path   address.Path       `json:"path"`
	ID     address.ResourceID `json:"id"`
	Cursor string             `json:"cursor,omitempty"` // List goes on behind this one
	// More is what follows in the same message of List, if an operation's limit asked for
	// several; of these the last one has the cursor.
	More []Listing `json:"more,omitempty"`
}

// Task is a task and when it is due, in Unix milliseconds.
type Task struct {
	ID    address.TaskID `json:"id"`
	DueMS int64          `json:"due_ms,string"`
}

// Batch is the request of Transact.
type Batch struct {
	Scope      Scope       `json:"scope"`
	Operations []Operation `json:"operations"`
	Key        string      `json:"key,omitempty"`
}

// BatchReply has a result for each operation, in order.
type BatchReply struct {
	Results []Result `json:"results"`
}

// Piece is a part of contents.
type Piece struct {
	Size int64  `json:"size,string"` // of all, in each piece
	Data []byte `json:"data,omitempty"`
}

// WriteReply is the answer of Write.
type WriteReply struct {
	ID   address.ResourceID `json:"id"`
	Size int64              `json:"size,string"`
}

// WatchRequest is the request of Watch.
type WatchRequest struct {
	Path     address.Path `json:"path"`               // a pattern
	Revision string       `json:"revision,omitempty"` // to go on behind
}

// The kinds of events of a watch.
const (
	EventState   = "state"
	EventSynced  = "synced"
	EventChanges = "changes"
	EventResync  = "resync"
)

// Event is a message of Watch.
type Event struct {
	Kind     string   `json:"kind"`
	Changes  []Change `json:"changes,omitempty"`
	Revision string   `json:"revision,omitempty"`
}

// Change is what is at a path now: a resource, or nothing any more.
type Change struct {
	Path    address.Path        `json:"path"`
	ID      *address.ResourceID `json:"id,omitempty"`
	Removed bool                `json:"removed,omitempty"`
}

// TaskRequest is the request of WatchTasks.
type TaskRequest struct {
	Path    *address.Path `json:"path,omitempty"`            // a pattern for the resources; none = all
	Window  int           `json:"window,omitempty"`          // tasks that are not done; 0 = 16
	LeaseMS int64         `json:"lease_ms,omitempty,string"` // 0 = the element's, 30 s
}
