package address

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	// MaxLen is the length of the longest address text in bytes, with the
	// instance written as "*": pinning an address to an instance cannot make it
	// too long, and the text of a pinned one has at most MaxLen+35 bytes.
	MaxLen = 1024

	// MaxOrdinal is the greatest ordinal of an element.
	MaxOrdinal = 65535
)

// Address is where a call goes.
//
//	address    = instance "://" deployment "/" element "/" service
//	instance   = "*" | InstanceID
//	deployment = "*" | DeploymentID | name
//	element    = text [ "[" ordinal "]" ]
//	service    = type [ "#" name ]
//
// Ids are 36 hex digits. A deployment's name has the form that
// [ValidDeploymentName] asks for, or is [BuiltinDeployment]; it stands for
// the id it hashes to. An element is printable ASCII without '/', '[', ']'
// and '#'; its ordinal is decimal, 0 to 65535, without sign or leading
// zeros.
//
// The grammar is that of a [Path] with a context and exactly three
// components, read strictly: nothing is trimmed and no empty component
// dropped, so an address has one spelling but for the case of ids and
// "type#" for "type".
//
// The zero value addresses nothing; its text is "". Address is a value: safe
// for concurrent use. Compare with [Address.Equal]: == tells a deployment
// written by name from the same one written by id.
type Address struct {
	instance      InstanceID
	deployment    DeploymentID
	anyInstance   bool
	anyDeployment bool
	hasOrdinal    bool
	ordinal       uint16
	name          string // the deployment as a name, "" if written as * or id
	element       string // without ordinal; never "" but in the zero value
	service       ServiceKey
}

// Parse reads an address. The error is an [*Error] of [KindAddress] that
// says what is wrong and shows the right form.
func Parse(s string) (Address, error) {
	a, why := parse(s)
	if why != "" {
		return Address{}, refuse(KindAddress, s, why)
	}
	return a, nil
}

// MustParse is [Parse] for tests and fixed text; it panics on an error.
func MustParse(s string) Address {
	a, err := Parse(s)
	if err != nil {
		panic(err)
	}
	return a
}

// FromParts makes an address of its parts as they are written in one, under
// the same rules; element has no ordinal in it. The ordinal counts only if
// hasOrdinal. The error is an [*Error] of [KindAddress].
func FromParts(instance, deployment, element string, ordinal int, hasOrdinal bool, service string) (Address, error) {
	a, why := makeAddress(instance, deployment, element, ordinal, hasOrdinal, service)
	if why == "" {
		return a, nil
	}
	if hasOrdinal {
		element = fmt.Sprintf("%s[%d]", element, ordinal)
	}
	return Address{}, refuse(KindAddress, instance+contextSeparator+deployment+"/"+element+"/"+service, why)
}

// parse takes the text apart; makeAddress judges the parts.
func parse(s string) (a Address, why string) {
	if s == "" {
		return Address{}, "it is empty"
	}
	instance, rest, ok := strings.Cut(s, contextSeparator)
	if !ok {
		return Address{}, `there is no "://"; write *:// in front for any instance`
	}
	parts := strings.SplitN(rest, "/", 4)
	if len(parts) != 3 {
		return Address{}, fmt.Sprintf(`there must be three parts after "://", there are %d`, strings.Count(rest, "/")+1)
	}
	element, ordinal, hasOrdinal, why := splitOrdinal(parts[1])
	if why != "" {
		return Address{}, why
	}
	return makeAddress(instance, parts[0], element, ordinal, hasOrdinal, parts[2])
}

// splitOrdinal takes "element[n]" apart. Brackets anywhere else are left in
// the element, where they are refused.
func splitOrdinal(s string) (element string, ordinal int, hasOrdinal bool, why string) {
	body, closed := strings.CutSuffix(s, "]")
	element, digits, opened := strings.Cut(body, "[")
	if !closed || !opened {
		return s, 0, false, ""
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return "", 0, false, fmt.Sprintf("the ordinal [%s] is not a decimal number from 0 to %d without sign or leading zeros",
			shorten(digits), MaxOrdinal)
	}
	return element, int(n), true, ""
}

func makeAddress(instance, deployment, element string, ordinal int, hasOrdinal bool, service string) (a Address, why string) {
	if a.instance, a.anyInstance, why = parseInstance(instance); why != "" {
		return Address{}, "the instance " + why
	}
	if a.deployment, a.anyDeployment, a.name, why = parseDeployment(deployment); why != "" {
		return Address{}, "the deployment " + why
	}
	if why := checkToken(element, "/[]#"); why != "" {
		return Address{}, "the element " + why
	}
	if isWildcard(element) {
		return Address{}, "the element is " + element + "; only an instance and a deployment can be *"
	}
	a.element = element
	if hasOrdinal {
		if ordinal < 0 || ordinal > MaxOrdinal {
			return Address{}, fmt.Sprintf("the ordinal %d is not from 0 to %d", ordinal, MaxOrdinal)
		}
		a.ordinal, a.hasOrdinal = uint16(ordinal), true
	}
	if a.service, why = splitServiceKey(service); why != "" {
		return Address{}, why
	}
	// Without its instance, and with the one byte of "*" in its place.
	if n := len(a.String()) - len(a.InstanceText()) + len(Wildcard); n > MaxLen {
		return Address{}, fmt.Sprintf("it has %d bytes, the instance counted as one; the limit is %d", n, MaxLen)
	}
	return a, ""
}

func parseInstance(s string) (id InstanceID, anyInstance bool, why string) {
	if s == Wildcard {
		return id, true, ""
	}
	id, err := ParseInstanceID(s)
	if err != nil || !isIDLike(s) {
		return id, false, fmt.Sprintf("%q is neither * nor an instance id, 36 hex digits that begin with 0100", shorten(s))
	}
	return id, false, ""
}

// parseDeployment also returns the name, if s is one.
func parseDeployment(s string) (id DeploymentID, anyDeployment bool, name, why string) {
	if s == Wildcard {
		return id, true, "", ""
	}
	if isIDLike(s) {
		id, err := ParseDeploymentID(s)
		if err != nil {
			why = fmt.Sprintf("%q is not a deployment id, which begins with 0101, and no name has 36 hex digits", s)
		}
		return id, false, "", why
	}
	if why := checkDeploymentName(s); why != "" {
		return id, false, "", fmt.Sprintf("%q is neither *, nor a deployment id, nor a name: %s", shorten(s), why)
	}
	return UniqueDeploymentID(s), false, s, ""
}

// Instance returns the instance; anyInstance is true for "*", and the id is
// zero then.
func (a Address) Instance() (id InstanceID, anyInstance bool) { return a.instance, a.anyInstance }

// Deployment returns the deployment; anyDeployment is true for "*", and the
// id is zero then.
func (a Address) Deployment() (id DeploymentID, anyDeployment bool) {
	return a.deployment, a.anyDeployment
}

// InstanceText returns "*" or the id in lower case.
func (a Address) InstanceText() string {
	switch {
	case a.IsZero():
		return ""
	case a.anyInstance:
		return Wildcard
	default:
		return a.instance.String()
	}
}

// DeploymentText returns what was written: "*", the name, or the id in lower
// case.
func (a Address) DeploymentText() string {
	switch {
	case a.IsZero():
		return ""
	case a.anyDeployment:
		return Wildcard
	case a.name != "":
		return a.name
	default:
		return a.deployment.String()
	}
}

// Element returns the element's name without its ordinal.
func (a Address) Element() string { return a.element }

// Ordinal returns the ordinal; ok is false if there is none, which is not
// the same as 0.
func (a Address) Ordinal() (n int, ok bool) { return int(a.ordinal), a.hasOrdinal }

// Service returns the service.
func (a Address) Service() ServiceKey { return a.service }

// IsZero reports whether a is the zero value.
func (a Address) IsZero() bool { return a == Address{} }

// Equal reports whether a and b address the same; a deployment's name equals
// its id.
func (a Address) Equal(b Address) bool {
	a.name, b.name = "", ""
	return a == b
}

// WithInstance returns a pinned to one instance. The zero value stays zero.
func (a Address) WithInstance(id InstanceID) Address {
	if !a.IsZero() {
		a.instance, a.anyInstance = id, false
	}
	return a
}

// String returns the address in a form that [Parse] reads back to the same
// value; "" for the zero value.
func (a Address) String() string {
	text, _ := a.AppendText(nil) // never fails
	return string(text)
}

// AppendText implements [encoding.TextAppender] with the form of String.
func (a Address) AppendText(b []byte) ([]byte, error) {
	if a.IsZero() {
		return b, nil
	}
	b = append(b, a.InstanceText()...)
	b = append(b, contextSeparator...)
	b = append(b, a.DeploymentText()...)
	b = append(b, '/')
	b = append(b, a.element...)
	if a.hasOrdinal {
		b = append(b, '[')
		b = strconv.AppendUint(b, uint64(a.ordinal), 10)
		b = append(b, ']')
	}
	b = append(b, '/')
	return append(b, a.service.String()...), nil
}

// MarshalText implements [encoding.TextMarshaler]; JSON goes through it.
func (a Address) MarshalText() ([]byte, error) { return a.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler], as [Parse]; empty
// text gives the zero value.
func (a *Address) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*a = Address{}
		return nil
	}
	return setParsed(a, Parse, string(text))
}

// MarshalBinary implements [encoding.BinaryMarshaler], as MarshalText.
func (a Address) MarshalBinary() ([]byte, error) { return a.AppendText(nil) }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler], as UnmarshalText.
func (a *Address) UnmarshalBinary(data []byte) error { return a.UnmarshalText(data) }
