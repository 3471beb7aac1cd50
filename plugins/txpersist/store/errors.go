package store

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	berrors "go.etcd.io/bbolt/errors"
)

// Kind says what an [Error] is about. The list is append-only.
type Kind string

// The kinds that an operation of a transaction may end with.
const (
	// KindArgument: what was asked for cannot be, whatever is stored.
	KindArgument Kind = "bad argument"
	// KindNode: an id or a path belongs to another node than the store.
	KindNode Kind = "other node"
	// KindScope: the transaction did not declare what it was to touch. It is
	// the original's SnapshotMissException.
	KindScope Kind = "not declared"
	// KindNotFound: there is no such resource.
	KindNotFound Kind = "resource not found"
	// KindNoContents: the resource exists and has no contents, which is not
	// the same as contents of no bytes. It is the original's
	// NullResourceException.
	KindNoContents Kind = "no contents"
	// KindDuplicate: the id or the path is taken.
	KindDuplicate Kind = "duplicate"
	// KindNoTask: the resource has no such task.
	KindNoTask Kind = "no such task"
	// KindState: the transaction has ended, or the store is closed.
	KindState Kind = "wrong state"
	// KindExpired: the transaction was open for longer than Options.MaxAge and
	// was rolled back.
	KindExpired Kind = "expired"
	// KindReused: the key of what is to be done once was used for something else.
	KindReused Kind = "key reused"
	// KindLimit: something is larger than the options allow, or there are too
	// many transactions.
	KindLimit Kind = "limit"
)

// The kinds that are about the file.
const (
	// KindInUse: another process, or another Store of this one, has the file.
	KindInUse Kind = "file in use"
	// KindFormat: the file is no store, or one of a format that this version
	// does not know.
	KindFormat Kind = "unknown format"
	// KindForeign: the file is the store of another node.
	KindForeign Kind = "store of another node"
	// KindCorrupt: the file is damaged. Nothing is ever mended in silence.
	KindCorrupt Kind = "store damaged"
	// KindFull: no room on the disk, or Options.MaxSize is reached. The
	// transaction is rolled back; later ones work as soon as there is room.
	KindFull Kind = "store full"
	// KindReadOnly: the file or its disk may not be written.
	KindReadOnly Kind = "read-only"
	// KindFailed: reading or writing the file failed. After a commit see
	// Error.Unknown.
	KindFailed Kind = "storage failed"
)

// Error is the only error of this package, apart from what a context ends with.
// Use errors.As or [KindOf] to tell them apart. An Error is immutable.
type Error struct {
	Kind Kind
	// Subject is the path, id or file that it is about.
	Subject string
	// Why says what is wrong and, where that helps, what to do.
	Why string
	// Unknown says that a commit failed so late that only opening the file again
	// can tell whether it took place. The store refuses all commits from then on.
	Unknown bool
	// Limit is the option that was reached, such as "MaxPath", and Max its value, with
	// KindLimit; "" if it is none of them.
	Limit string
	Max   int64
	// PID is the process that holds the file, with KindInUse; 0 is not known.
	PID int
	// Err is the cause; it may be nil.
	Err error
}

// Error says kind, subject and reason on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("store: " + string(e.Kind))
	if e.Subject != "" {
		b.WriteString(": " + e.Subject)
	}
	if e.Why != "" {
		b.WriteString(": " + e.Why)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error of the same Kind, and of the same
// Subject if target has one.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Kind == e.Kind && (t.Subject == "" || t.Subject == e.Subject)
}

// KindOf returns the kind of the *Error in err's chain, or "".
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ""
}

func fail(kind Kind, subject, format string, args ...any) *Error {
	return &Error{Kind: kind, Subject: subject, Why: fmt.Sprintf(format, args...)}
}

// tooMuch is what a limit of the options refuses.
func tooMuch(limit string, most int64, subject, format string, args ...any) *Error {
	e := fail(KindLimit, subject, format, args...)
	e.Limit, e.Max = limit, most
	return e
}

func corrupt(format string, args ...any) *Error { return fail(KindCorrupt, "", format, args...) }

// hasErrno reports whether err comes of one of the numbers. bbolt formats some of
// its causes into text, so the text of the number is looked for at the end, too.
func hasErrno(err error, numbers ...syscall.Errno) bool {
	for _, n := range numbers {
		if errors.Is(err, n) || strings.HasSuffix(err.Error(), ": "+n.Error()) {
			return true
		}
	}
	return false
}

// storageError turns what bbolt or the system says of a file into an *Error.
func storageError(file string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		if e.Subject != "" {
			return e
		}
		named := *e
		named.Subject = file
		return &named
	}
	e := &Error{Kind: KindFailed, Subject: file, Err: err}
	switch {
	case errors.Is(err, berrors.ErrMaxSizeReached):
		e.Kind, e.Why = KindFull, "the file has reached its largest size; raise MaxSize, or remove resources: their pages are used again"
	case hasErrno(err, syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG):
		e.Kind, e.Why = KindFull, "make room on its disk; what was committed before is safe"
	case hasErrno(err, syscall.EROFS, syscall.EACCES, syscall.EPERM):
		e.Kind, e.Why = KindReadOnly, "the store needs a file and a disk that it may write"
	case errors.Is(err, fs.ErrNotExist):
		e.Why = "the folder must exist"
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		e.Kind = KindCorrupt
	}
	return e
}
