package address

import (
	"fmt"
	"strings"
)

// ParameterizedPath is a path of which some components are parameters,
// written {name}: /users/{id}/scores. The zero value is the template of the
// root. It is a value: safe for concurrent use.
//
// Unlike the original, "**" and {} are refused and
// [ParameterizedPath.Resolve] keeps the context and gives bare names.
type ParameterizedPath struct{ path Path }

// Parameter is one parameter of a [ParameterizedPath] and its value.
type Parameter struct {
	Name  string // without braces
	Value string // one component
}

// ParseParameterizedPath reads a template. Components that are wildcards, a
// parameter without a name and two with the same name are refused with an
// [*Error] of [KindTemplate].
func ParseParameterizedPath(s string) (ParameterizedPath, error) {
	p, err := ParsePath(s)
	if err != nil {
		return ParameterizedPath{}, err
	}
	seen := make(map[string]bool)
	for _, c := range p.Components() {
		if isWildcard(c) {
			return ParameterizedPath{}, refuse(KindTemplate, s, "it has the wildcard "+c)
		}
		name, ok := parameterName(c)
		if !ok {
			continue
		}
		if name == "" {
			return ParameterizedPath{}, refuse(KindTemplate, s, "a parameter has no name")
		}
		if seen[name] {
			return ParameterizedPath{}, refuse(KindTemplate, s, fmt.Sprintf("there are two parameters %q", name))
		}
		seen[name] = true
	}
	return ParameterizedPath{p}, nil
}

// parameterName returns what stands in the braces, if component is {...}.
func parameterName(component string) (name string, ok bool) {
	if rest, open := strings.CutPrefix(component, "{"); open {
		return strings.CutSuffix(rest, "}")
	}
	return "", false
}

// String returns the template in the normal form of a path.
func (t ParameterizedPath) String() string { return t.path.String() }

// Names returns the names of the parameters in template order.
func (t ParameterizedPath) Names() []string {
	var names []string
	for _, c := range t.path.Components() {
		if name, ok := parameterName(c); ok {
			names = append(names, name)
		}
	}
	return names
}

// Match reports whether p has as many components as the template and the
// same literals. A template without a context takes any; else contexts match
// as in [Path.Match].
func (t ParameterizedPath) Match(p Path) bool {
	_, ok := t.extract(p)
	return ok
}

// Extract returns the parameters' values in p, in template order. If p does
// not match, the error is an [*Error] of [KindPathOp].
func (t ParameterizedPath) Extract(p Path) ([]Parameter, error) {
	parameters, ok := t.extract(p)
	if !ok {
		return nil, refuse(KindPathOp, p.String(), "does not match the template "+t.String())
	}
	return parameters, nil
}

func (t ParameterizedPath) extract(p Path) (parameters []Parameter, ok bool) {
	want, got := t.path.Components(), p.Components()
	if len(want) != len(got) || t.path.HasContext() && !matchContext(t.path.context, p.context) {
		return nil, false
	}
	for i, c := range want {
		if name, ok := parameterName(c); ok {
			parameters = append(parameters, Parameter{name, got[i]})
		} else if c != got[i] {
			return nil, false
		}
	}
	return parameters, true
}

// Resolve returns the template's path with every parameter replaced by what
// value gives for its name. A wildcard is a value like any other; a value
// that is no component is an [*Error] of [KindPathOp].
func (t ParameterizedPath) Resolve(value func(name string) string) (Path, error) {
	components := t.path.Components()
	for i, c := range components {
		if name, ok := parameterName(c); ok {
			components[i] = value(name)
		}
	}
	return t.path.with(components)
}
