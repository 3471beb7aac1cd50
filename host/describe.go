package host

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// What an element may say of itself. Of a hundred elements all of it has to fit into
// the one answer that ls gets, and it travels to whoever asks.
const (
	maxDescription = 64 << 10 // bytes, encoded, without the schemas
	// maxSchemas bounds the schemas of an element, in bytes. They do not travel with the
	// rest, and one that has more goes without.
	maxSchemas     = 256 << 10
	maxServices    = 256
	maxMethods     = 1024 // of all services
	maxMethodName  = 128  // bytes
	maxVersion     = 256  // bytes; the rest is cut
	maxElementText = 2 << 10
	maxReason      = 4 << 10
)

// refusedDescription is the kind of an element whose description cannot be taken: it
// will say the same again.
const refusedDescription = "bad_description"

// reservedServices begin what only an instance itself may answer as.
const reservedServices = "conduit.v1."

// checkDescription refuses what could not be addressed, would leave the element's own
// directories, could be mistaken for the instance's own services, or is too much to
// show. It cuts texts that are only for people. The error is of type *cause: another
// process of the same file says the same.
func checkDescription(d *conduitv1.Description) error {
	d.Version = pluginlink.Text(d.GetVersion(), maxVersion)
	d.Api = pluginlink.Text(d.GetApi(), maxVersion)
	schemas := d.GetSchemas()
	d.Schemas = nil
	why := descriptionFault(d)
	if goodSchemas(schemas) {
		d.Schemas = schemas
	}
	if why != "" {
		return &cause{refusedDescription, why + "; its author mends that"}
	}
	return nil
}

func descriptionFault(d *conduitv1.Description) string {
	name := d.GetElement()
	shown := pluginlink.Text(name, maxMethodName)
	if _, err := address.FromParts("*", "*", name, 0, false, "a.B"); err != nil {
		return fmt.Sprintf("the element calls itself %q, which cannot stand in an address: %s", shown, pluginlink.Text(err.Error(), maxElementText))
	}
	switch {
	case name == "." || name == ".." || name != filepath.Base(name) || len(name) > maxMethodName:
		return fmt.Sprintf("the element calls itself %q, which cannot be the name of a directory", shown)
	case name == address.BuiltinDeployment:
		return fmt.Sprintf("the element calls itself %q, a name that is the instance's own", name)
	case len(d.GetServices()) > maxServices:
		return fmt.Sprintf("the element exports %d services, more than %d", len(d.GetServices()), maxServices)
	}
	seen := map[string]bool{}
	methods := 0
	for _, s := range d.GetServices() {
		shown := pluginlink.Text(s.GetName(), maxMethodName)
		key, err := address.ParseServiceKey(s.GetName())
		switch {
		case err != nil:
			return "the element exports a service whose name cannot stand in an address: " + pluginlink.Text(err.Error(), maxElementText)
		case seen[s.GetName()]:
			return fmt.Sprintf("the element exports service %s twice", shown)
		case strings.HasPrefix(key.Type(), reservedServices) || key.Type() == pluginlink.HostService:
			return fmt.Sprintf("the element exports service %s; that name, as %s*, is for what an instance says of itself", shown, reservedServices)
		}
		seen[s.GetName()] = true
		if methods += len(s.GetMethods()); methods > maxMethods {
			return fmt.Sprintf("the element exports more than %d methods", maxMethods)
		}
		if why := methodsFault(s.GetMethods()); why != "" {
			return fmt.Sprintf("service %s: %s", shown, why)
		}
	}
	if why := attributesFault(d.GetAttributes()); why != "" {
		return why
	}
	if n := proto.Size(d); n > maxDescription {
		return fmt.Sprintf("the element's description takes %d bytes, more than %d", n, maxDescription)
	}
	return ""
}

// goodSchemas reports whether schemas can be put into a document: they are JSON objects,
// what they define can be referred to, and they are not too many.
func goodSchemas(s *conduitv1.Schemas) bool {
	if proto.Size(s) > maxSchemas {
		return false
	}
	object := func(text string) bool {
		return json.Valid([]byte(text)) && strings.HasPrefix(strings.TrimSpace(text), "{")
	}
	for _, m := range s.GetMethods() {
		if m.GetRequest() != "" && !object(m.GetRequest()) || m.GetReply() != "" && !object(m.GetReply()) {
			return false
		}
	}
	for name, text := range s.GetDefinitions() {
		odd := strings.ContainsFunc(name, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_'
		})
		if name == "" || len(name) > 2*maxMethodName || odd || !object(text) {
			return false
		}
	}
	return true
}

func methodsFault(methods []*conduitv1.MethodDescription) string {
	seen := map[string]bool{}
	for _, m := range methods {
		name := m.GetName()
		if why := methodNameFault(name); why != "" {
			return fmt.Sprintf("the name of method %q %s", pluginlink.Text(name, maxMethodName), why)
		}
		_, shape := conduitv1.Shape_name[int32(m.GetShape())]
		_, level := conduitv1.Level_name[int32(m.GetMinLevel())]
		switch {
		case seen[name]:
			return fmt.Sprintf("method %s is there twice", name)
		case !shape:
			return fmt.Sprintf("method %s has the shape %d, which this release does not know", name, m.GetShape())
		case !level:
			return fmt.Sprintf("method %s asks for level %d, which this release does not know", name, m.GetMinLevel())
		}
		seen[name] = true
	}
	return ""
}

// methodNameFault holds every element to what pluginapi lets its own be called.
func methodNameFault(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxMethodName:
		return fmt.Sprintf("has more than %d bytes", maxMethodName)
	}
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || (r < '0' || r > '9') && r != '.' && r != '-') {
			return "must be a letter followed by letters, digits, '_', '.' and '-'"
		}
	}
	return ""
}
