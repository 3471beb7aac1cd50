package pluginapi

import (
	"fmt"
	"maps"

	"github.com/elemental-conduit/conduit/internal/attribute"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Attribute declares one that the element reads. It may read others, too; what is
// declared is shown by describe, and can have a default.
type Attribute struct {
	Name string
	// Default holds where neither the instance nor the deployment gives a value; ""
	// = none. It stands in the description, for everybody to read, so what is
	// Sensitive cannot have one.
	Default string
	// Description says what it is for, for people.
	Description string
	// Sensitive says that the value must never be shown, whoever gives it: the host
	// keeps it out of status, logs and errors.
	Sensitive bool
	// Required has the operator warned when there is no value. The element starts all
	// the same; Configure may refuse to.
	Required bool
}

// Attributes returns a copy of what holds for the element: its own defaults, over them
// the instance's attributes (host.attributes), over these its deployment's. They do
// not change while the process lives: with another value the element is reloaded.
func (h Host) Attributes() map[string]string {
	if c := h.configuration(); c != nil {
		return maps.Clone(c.Attributes)
	}
	return nil
}

// Attribute returns one of [Host.Attributes], or "".
func (h Host) Attribute(name string) string {
	if c := h.configuration(); c != nil {
		return c.Attributes[name]
	}
	return ""
}

// IsSensitive reports whether the value of an attribute must not be shown: its author
// or an operator said so.
func (h Host) IsSensitive(name string) bool {
	c := h.configuration()
	return c != nil && c.sensitive[name]
}

// checkAttributes returns the mistakes in what an element declares.
func checkAttributes(list []Attribute) (mistakes []string) {
	seen := map[string]bool{}
	for _, a := range list {
		mistake := func(format string, args ...any) {
			mistakes = append(mistakes, fmt.Sprintf("attribute %q: ", a.Name)+fmt.Sprintf(format, args...))
		}
		if why := attribute.NameFault(a.Name); why != "" {
			mistake("its name %s", why)
		}
		if seen[a.Name] {
			mistake("it is declared twice")
		}
		seen[a.Name] = true
		if a.Sensitive && a.Default != "" {
			mistake("it is sensitive and has a default, which whoever has the binary can read: leave one of them out")
		}
		if a.Required && a.Default != "" {
			mistake("it is required and has a default, so that it never lacks a value: leave one of them out")
		}
	}
	return mistakes
}

func (a Attribute) describe() *conduitv1.AttributeDescription {
	d := &conduitv1.AttributeDescription{Name: a.Name, Description: a.Description, Sensitive: a.Sensitive, Required: a.Required}
	if a.Default != "" {
		d.Default = &a.Default
	}
	return d
}
