package conduit

import "fmt"

// Code says what kind of error ended a call. The codes are gRPC's sixteen, by
// the same numbers and names; there is no OK, since a call that succeeded has
// no error. The list is append-only: codes travel.
type Code uint8

// The codes, with gRPC's meanings.
const (
	Canceled           Code = 1
	Unknown            Code = 2
	InvalidArgument    Code = 3
	DeadlineExceeded   Code = 4
	NotFound           Code = 5
	AlreadyExists      Code = 6
	PermissionDenied   Code = 7
	ResourceExhausted  Code = 8
	FailedPrecondition Code = 9
	Aborted            Code = 10
	OutOfRange         Code = 11
	Unimplemented      Code = 12
	Internal           Code = 13
	Unavailable        Code = 14
	DataLoss           Code = 15
	Unauthenticated    Code = 16
)

// codeName gives a code's name on the wire, in JSON and in text.
func codeName(c Code) string {
	switch c {
	case Canceled:
		return "canceled"
	case Unknown:
		return "unknown"
	case InvalidArgument:
		return "invalid_argument"
	case DeadlineExceeded:
		return "deadline_exceeded"
	case NotFound:
		return "not_found"
	case AlreadyExists:
		return "already_exists"
	case PermissionDenied:
		return "permission_denied"
	case ResourceExhausted:
		return "resource_exhausted"
	case FailedPrecondition:
		return "failed_precondition"
	case Aborted:
		return "aborted"
	case OutOfRange:
		return "out_of_range"
	case Unimplemented:
		return "unimplemented"
	case Internal:
		return "internal"
	case Unavailable:
		return "unavailable"
	case DataLoss:
		return "data_loss"
	case Unauthenticated:
		return "unauthenticated"
	}
	return ""
}

// Valid reports whether c is one of the sixteen.
func (c Code) Valid() bool { return c >= Canceled && c <= Unauthenticated }

// String returns the code's name, such as "not_found".
func (c Code) String() string {
	if s := codeName(c); s != "" {
		return s
	}
	return fmt.Sprintf("code(%d)", uint8(c))
}

// MarshalText writes the code's name.
func (c Code) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (c *Code) UnmarshalText(text []byte) error {
	for k := Canceled; k <= Unauthenticated; k++ {
		if codeName(k) == string(text) {
			*c = k
			return nil
		}
	}
	return fmt.Errorf("code %q is none of gRPC's sixteen", text)
}

// Outcome says whether a failed call's work may have run. It is half of the
// rule for trying elsewhere; [Error.Retryable] is the other.
type Outcome uint8

const (
	// OutcomeUnknown: a link or a plugin died, or the deadline passed, while
	// the work might have been running. The zero value, since it is the only
	// safe one to assume.
	OutcomeUnknown Outcome = iota
	// NotSent: the call never left this instance, or no peer accepted it.
	NotSent
	// Refused: the peer says that it did not start the work.
	Refused
	// Executed: the element ran and answered with this error.
	Executed
)

// String returns the outcome's name, such as "not_sent".
func (o Outcome) String() string {
	switch o {
	case OutcomeUnknown:
		return "unknown"
	case NotSent:
		return "not_sent"
	case Refused:
		return "refused"
	case Executed:
		return "executed"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// MarshalText writes the outcome's name.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (o *Outcome) UnmarshalText(text []byte) error {
	for k := OutcomeUnknown; k <= Executed; k++ {
		if k.String() == string(text) {
			*o = k
			return nil
		}
	}
	return fmt.Errorf("outcome %q is none of unknown, not_sent, refused, executed", text)
}

// Level is how much a caller may do. The levels are ordered.
type Level uint8

// The levels, lowest first. System is for instances alone.
const (
	Anonymous Level = iota
	User
	Superuser
	System
)

// String returns the level's name, such as "user".
func (l Level) String() string {
	switch l {
	case Anonymous:
		return "anonymous"
	case User:
		return "user"
	case Superuser:
		return "superuser"
	case System:
		return "system"
	}
	return fmt.Sprintf("level(%d)", uint8(l))
}

// MarshalText writes the level's name.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (l *Level) UnmarshalText(text []byte) error {
	for k := Anonymous; k <= System; k++ {
		if k.String() == string(text) {
			*l = k
			return nil
		}
	}
	return fmt.Errorf("level %q is none of anonymous, user, superuser, system", text)
}
