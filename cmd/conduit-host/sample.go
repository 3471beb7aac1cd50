package main

import (
	"encoding/json"
	"slices"
	"strings"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// sampleRequest returns a request, as JSON, that a method's schema allows, to be shown: each
// field of it with something in it. It is "" where nothing is known of the request, or
// none is needed.
func sampleRequest(d *conduitv1.Description, service, method string) string {
	for _, m := range d.GetSchemas().GetMethods() {
		if m.GetService() == service && m.GetMethod() == method && m.GetRequest() != "" {
			var schema map[string]any
			if json.Unmarshal([]byte(m.GetRequest()), &schema) != nil {
				return ""
			}
			b, err := json.Marshal(sampleOf(schema, d.GetSchemas().GetDefinitions(), 0))
			if err != nil || strings.Contains(string(b), "'") { // it is shown between quotes for a shell
				return ""
			}
			return string(b)
		}
	}
	return ""
}

// sampleDepth is how deep a sample goes: below that it has what is empty.
const sampleDepth = 3

func sampleOf(schema map[string]any, definitions map[string]string, depth int) any {
	if to, ok := schema["$ref"].(string); ok {
		var of map[string]any
		if json.Unmarshal([]byte(definitions[strings.TrimPrefix(to, "#/$defs/")]), &of) != nil || depth > sampleDepth {
			return map[string]any{}
		}
		return sampleOf(of, definitions, depth+1)
	}
	kinds, ok := schema["type"].([]any)
	if !ok {
		kinds = []any{schema["type"]}
	}
	is := func(kind string) bool { return slices.Contains(kinds, any(kind)) }
	switch {
	case is("object"):
		fields := map[string]any{}
		properties, _ := schema["properties"].(map[string]any)
		for name, p := range properties {
			if of, ok := p.(map[string]any); ok && depth <= sampleDepth {
				fields[name] = sampleOf(of, definitions, depth+1)
			}
		}
		return fields
	case is("array"):
		return []any{}
	case is("string") && schema["contentEncoding"] != nil:
		return "AQID"
	case is("string") && schema["format"] == "date-time":
		return "2026-01-31T12:00:00Z"
	case is("string"):
		return "text"
	case is("integer"), is("number"):
		return 1
	case is("boolean"):
		return true
	}
	return map[string]any{}
}
