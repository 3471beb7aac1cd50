package gateway

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
)

// maxOperations is how many methods a document has at most.
const maxOperations = 4096

// Method is a method that can be called through the gateway.
type Method struct {
	Deployment, Element, Service, Name string
	// Many results may come, and many messages may be sent.
	ManyResults, ManyMessages bool
	Level                     conduit.Level
	Units                     uint32
	Idempotent                bool
	Deprecated                string // why, empty = it is not
	Timeout                   time.Duration
	// RequestType and ReplyType are the types' names, for people; empty = there is no
	// message.
	RequestType, ReplyType string
	// ContentTypes are those that the method reads and writes, the first is its own.
	ContentTypes []string
	// Request and Reply are JSON Schemas of one message each, nil if nothing is known. In
	// them "#/$defs/NAME" refers to Definitions[NAME], which methods of one element share.
	Request, Reply json.RawMessage
	Definitions    map[string]json.RawMessage
}

// path is where the method is called.
func (m *Method) path() string {
	var b strings.Builder
	b.WriteString(strings.TrimSuffix(callPrefix, "/"))
	for _, segment := range []string{m.Deployment, m.Element, m.Service, m.Name} {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(segment))
	}
	return b.String()
}

type object = map[string]any

// Document is the OpenAPI 3.1 document of a gateway through which methods can be called;
// of one that logs clients in, with sessions. Methods that are there twice, since several
// instances have them, are told of once. It is for encoding/json, and changes nothing.
func Document(methods []Method, sessions bool) any {
	methods = slices.Clone(methods)
	slices.SortStableFunc(methods, func(a, b Method) int {
		return cmp.Or(strings.Compare(a.Deployment, b.Deployment), strings.Compare(a.Element, b.Element), strings.Compare(a.Service, b.Service), strings.Compare(a.Name, b.Name))
	})
	methods = slices.CompactFunc(methods, func(a, b Method) bool {
		return a.Deployment == b.Deployment && a.Element == b.Element && a.Service == b.Service && a.Name == b.Name
	})
	about := "The methods that the caller may call through this gateway, by what was deployed when the document was made."
	if left := len(methods) - maxOperations; left > 0 {
		methods = methods[:maxOperations]
		about += " " + strconv.Itoa(left) + " methods are left out: the document would be too large."
	}
	d := &maker{components: fixedSchemas(), names: map[string]string{}}
	paths := fixedPaths(sessions)
	for i := range methods {
		paths[methods[i].path()] = object{"post": d.operation(&methods[i])}
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Elemental Conduit gateway", "version": "1", "description": about,
			"license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"servers":  []any{object{"url": "/"}},
		"security": []any{object{}, object{"session": []string{}}, object{"secret": []string{}}},
		"paths":    paths,
		"components": object{
			"schemas": d.components,
			"securitySchemes": object{
				"session": object{"type": "http", "scheme": "bearer", "description": "The secret of a session."},
				"secret":  object{"type": "apiKey", "in": "header", "name": "Elements-SessionSecret"},
			},
			"parameters": object{
				"timeout":  object{"name": headerTimeout, "in": "header", "description": "The call's deadline, a duration with a unit.", "schema": object{"type": "string"}, "example": "1500ms"},
				"instance": object{"name": "instance", "in": "query", "description": "The id of the one instance that is to be called.", "schema": object{"type": "string"}},
				"parts":    object{"name": "parts", "in": "query", "description": "Whether results of further handlers are wanted.", "schema": object{"type": "string", "enum": []string{"0", "1"}}},
			},
			"responses": object{
				"problem": object{"description": "Problem details (RFC 9457).", "content": object{typeProblem: object{"schema": ref("Problem")}}},
			},
		},
	}
}

// maker makes a document.
type maker struct {
	components object            // schemas by name
	names      map[string]string // of components, by element and definition
}

func ref(component string) object { return object{"$ref": "#/components/schemas/" + component} }

// operation is the call of a method.
func (d *maker) operation(m *Method) object {
	op := object{
		"operationId": strings.Join([]string{m.Deployment, m.Element, m.Service, m.Name}, "/"),
		"tags":        []string{m.Deployment + "/" + m.Element + "/" + m.Service},
		"summary":     m.Name,
		"parameters":  []any{object{"$ref": "#/components/parameters/timeout"}, object{"$ref": "#/components/parameters/instance"}, object{"$ref": "#/components/parameters/parts"}},
		"responses": object{
			"200":     object{"description": "The results.", "content": d.results(m)},
			"204":     object{"description": "There is no result."},
			"default": object{"$ref": "#/components/responses/problem"},
		},
		"x-conduit-min-level": m.Level.String(),
	}
	if m.Level > conduit.Anonymous {
		op["security"] = []any{object{"session": []string{}}, object{"secret": []string{}}}
	}
	if m.RequestType != "" {
		content := object{}
		for _, t := range m.ContentTypes {
			switch t {
			case conduit.ContentJSON:
				content[t] = object{"schema": d.schema(m, m.Request)}
			case conduit.ContentBytes, conduit.ContentProto:
				content[t] = object{}
			}
		}
		if len(content) == 0 {
			content[conduit.ContentJSON] = object{}
		}
		about := "One message: " + m.RequestType
		if m.ManyMessages && !slices.Equal(m.ContentTypes, []string{conduit.ContentBytes}) {
			about += "; or, as lines of JSON, several"
			content[typeNDJSON] = object{"schema": object{"type": "string", "description": "A line of JSON for each message."}}
		}
		op["requestBody"] = object{"description": about, "content": content, "required": true}
	}
	var about []string
	if m.Deprecated != "" {
		op["deprecated"] = true
		about = append(about, "Deprecated: "+m.Deprecated)
	}
	if m.ManyMessages {
		about = append(about, "It takes many messages.")
	}
	if len(about) > 0 {
		op["description"] = strings.Join(about, "\n\n")
	}
	if m.Idempotent {
		op["x-conduit-idempotent"] = true
	}
	if m.Units > 0 {
		op["x-conduit-units"] = m.Units
	}
	if m.Timeout > 0 {
		op["x-conduit-timeout"] = m.Timeout.String()
	}
	return op
}

// results are the forms in which results come.
func (d *maker) results(m *Method) object {
	reply := d.schema(m, m.Reply)
	content := object{
		typeNDJSON: object{"schema": object{"type": "string", "description": "A line of JSON for each result."}},
		typeEvents: object{"schema": object{"type": "string", "description": "A server-sent event for each result, whose data is JSON."}},
	}
	if !m.ManyResults {
		content[conduit.ContentJSON] = object{"schema": reply}
	} else {
		content[conduit.ContentJSON] = object{"schema": object{"description": "If there is one result alone.", "allOf": []any{reply}}}
	}
	for _, t := range m.ContentTypes {
		if t == conduit.ContentBytes || t == conduit.ContentProto {
			content[t] = object{}
		}
	}
	return content
}

// schema is one of a method's, with what it refers to among the components; anything may
// come where it cannot be read.
func (d *maker) schema(m *Method, text json.RawMessage) any {
	v, ok := parseSchema(text)
	if !ok {
		return object{}
	}
	return d.resolve(m, v)
}

func parseSchema(text json.RawMessage) (object, bool) {
	var v object
	if len(text) == 0 || json.Unmarshal(text, &v) != nil {
		return nil, false
	}
	return v, v != nil
}

const definitionRef = "#/$defs/"

// resolve has references go to the components of the document, where it puts what they
// refer to. What refers to anything else may be anything: no document makes its readers
// load what an element names.
func (d *maker) resolve(m *Method, v any) any {
	switch v := v.(type) {
	case object:
		if to, is := v["$ref"].(string); is {
			name, ours := strings.CutPrefix(to, definitionRef)
			definition, there := m.Definitions[name]
			if !ours || !there {
				return object{}
			}
			return ref(d.component(m, name, definition))
		}
		out := object{}
		for key, value := range v {
			switch key {
			case "$ref", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$schema", "$defs":
				// They would change what references mean.
			case "const", "default", "enum", "examples", "example":
				out[key] = value // data, no schemas
			default:
				out[key] = d.resolve(m, value)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = d.resolve(m, v[i])
		}
		return out
	default:
		return v
	}
}

// component is the name of the component that a definition of an element is.
func (d *maker) component(m *Method, name string, definition json.RawMessage) string {
	key := m.Deployment + "/" + m.Element + "/" + name
	if known, ok := d.names[key]; ok {
		return known
	}
	base := componentName(m.Deployment + "." + m.Element + "." + name)
	unique := base
	for n := 2; d.components[unique] != nil; n++ {
		unique = base + "_" + strconv.Itoa(n)
	}
	d.names[key], d.components[unique] = unique, object{} // before it is made: it may be in itself
	if v, ok := parseSchema(definition); ok {
		d.components[unique] = d.resolve(m, v)
	}
	return unique
}

// componentName makes of a text what a component may be called.
func componentName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, s)
}

// fixedSchemas are those of the gateway itself.
func fixedSchemas() object {
	text := object{"type": "string"}
	return object{
		"Problem": object{
			"type": "object", "required": []string{"type", "title", "status", "code", "outcome", "retryable"},
			"properties": object{
				"type": object{"type": "string", "format": "uri"}, "title": text, "status": object{"type": "integer"}, "detail": text,
				"code": text, "reason": text, "outcome": object{"type": "string", "enum": []string{"not_sent", "refused", "executed", "unknown"}},
				"retryable": object{"type": "boolean"}, "retry_after": text, "peer": text, "address": text, "method": text,
				"details": object{"type": "object", "additionalProperties": text},
			},
		},
		"Login":   object{"type": "object", "required": []string{"user", "password"}, "properties": object{"user": text, "password": object{"type": "string", "format": "password"}}},
		"Session": object{"type": "object", "properties": object{"secret": text, "user": text, "level": text, "expires": object{"type": "string", "format": "date-time"}}},
	}
}

// fixedPaths are those of the gateway itself.
func fixedPaths(sessions bool) object {
	problem := object{"$ref": "#/components/responses/problem"}
	answer := func(about, content string, schema any) object {
		return object{"description": about, "content": object{content: object{"schema": schema}}}
	}
	paths := object{
		eventsPath: object{"get": object{
			"operationId": "events", "tags": []string{"gateway"}, "summary": "What there is and what changes, as server-sent events",
			"responses": object{"200": answer("Events.", typeEvents, object{"type": "string"}), "default": problem},
		}},
		openAPIPath: object{"get": object{
			"operationId": "openapi", "tags": []string{"gateway"}, "summary": "This document",
			"responses": object{"200": answer("The document.", conduit.ContentJSON, object{"type": "object"}), "default": problem},
		}},
	}
	for _, what := range lists {
		op := object{
			"operationId": what, "tags": []string{"gateway"}, "summary": "The " + what + " that there are",
			"responses": object{"200": answer("The list.", conduit.ContentJSON, object{"type": "array", "items": object{"type": "object"}}), "default": problem},
		}
		if what != "instances" && what != "links" {
			op["parameters"] = []any{object{
				"name": "cluster", "in": "query", "description": "Whether those of other instances are wanted, too.",
				"schema": object{"type": "string", "enum": []string{"0", "1"}},
			}}
		}
		paths[versionPrefix+what] = object{"get": op}
	}
	if sessions {
		paths[sessionsPath] = object{"post": object{
			"operationId": "login", "tags": []string{"gateway"}, "summary": "Makes a session", "security": []any{object{}},
			"requestBody": object{"required": true, "content": object{conduit.ContentJSON: object{"schema": ref("Login")}}},
			"responses":   object{strconv.Itoa(http.StatusCreated): answer("The session.", conduit.ContentJSON, ref("Session")), "default": problem},
		}}
		paths[currentPath] = object{"delete": object{
			"operationId": "logout", "tags": []string{"gateway"}, "summary": "Ends the session",
			"responses": object{strconv.Itoa(http.StatusNoContent): object{"description": "It has ended."}, "default": problem},
		}}
	}
	return paths
}
