package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v4"
)

// MaxFile is how large a configuration file may be, in bytes. Whoever hands over more
// named the wrong file.
const MaxFile = 1 << 20

// text is what a layer says of a key, before it is understood.
type text struct {
	text  string
	where string
	line  int // in the file; 0 elsewhere
}

// readFile reads the file layer. Everything wrong with it is found in one go.
func readFile(path string, keys []Key) (map[string]text, []Problem) {
	// Without waiting: the open of a pipe would, until somebody writes.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, []Problem{{Where: path, Message: "the configuration file cannot be opened: " + cause(err) + "; give its path with --config"}}
	}
	defer f.Close() //nolint:errcheck // nothing was written
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() && !info.IsDir() && path != os.DevNull {
		return nil, []Problem{{Where: path, Message: "is a pipe or a device, and the configuration is read more than once, as on SIGHUP; write it to a file"}}
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, []Problem{{Where: path, Message: "the configuration file cannot be read: " + cause(err)}}
	}
	if len(data) > MaxFile {
		return nil, []Problem{{Where: path, Message: "is larger than 1MiB: that is no configuration file"}}
	}
	return parseFile(path, data, keys)
}

// parseFile reads a YAML document into texts by key. It walks the node tree
// instead of decoding into a struct, since only nodes know their line.
func parseFile(path string, data []byte, keys []Key) (map[string]text, []Problem) {
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		return nil, []Problem{{Where: path, Message: err.Error()}}
	}
	var doc, second yaml.Node
	switch err := loader.Load(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil // an empty file asks for nothing
	case err != nil:
		return nil, []Problem{yamlProblem(path, err)}
	}
	r := &fileReader{path: path, keys: keys, values: map[string]text{}}
	switch err := loader.Load(&second); {
	case err == nil:
		r.report(&second, "", "a second document begins here; a configuration file holds one")
	case !errors.Is(err, io.EOF):
		return nil, []Problem{yamlProblem(path, err)}
	}
	if len(doc.Content) == 1 {
		r.section(doc.Content[0], "")
	}
	return r.values, r.problems
}

type fileReader struct {
	path     string
	keys     []Key
	values   map[string]text
	problems []Problem
}

func (r *fileReader) report(n *yaml.Node, key, format string, args ...any) {
	r.problems = append(r.problems, Problem{Key: key, Where: r.where(n), Message: fmt.Sprintf(format, args...), line: n.Line})
}

func (r *fileReader) where(n *yaml.Node) string {
	return fmt.Sprintf("%s:%d", r.path, n.Line)
}

// section reads the mapping that stands at a prefix of keys, such as "cluster.".
func (r *fileReader) section(n *yaml.Node, prefix string) {
	name := strings.TrimSuffix(prefix, ".")
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return // nothing is set in it
	case n.Kind == yaml.AliasNode:
		r.report(n, name, "an alias can stand for a value, not for a group of keys; write the keys out")
		return
	case n.Kind != yaml.MappingNode && name == "":
		r.report(n, "", "a configuration file is a mapping of keys to values, such as `mode: worker`")
		return
	case n.Kind != yaml.MappingNode:
		r.report(n, name, "is a group of keys, not a value%s", r.groupHint(prefix))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case k.Kind != yaml.ScalarNode:
			r.report(k, name, "a key must be plain text")
			continue
		case k.Value == "<<":
			r.report(k, name, "merge keys are not read; write the keys out")
			continue
		}
		if line, twice := seen[k.Value]; twice {
			r.report(k, prefix+k.Value, "is set twice; the first is in line %d", line)
			continue
		}
		seen[k.Value] = k.Line
		r.entry(k, v, prefix+k.Value)
	}
}

func (r *fileReader) entry(k, v *yaml.Node, path string) {
	for i := range r.keys {
		if r.keys[i].Name == path {
			r.value(k, v, path)
			return
		}
	}
	for i := range r.keys {
		if strings.HasPrefix(r.keys[i].Name, path+".") {
			r.section(v, path+".")
			return
		}
	}
	r.report(k, path, "is not a key%s", suggestKey(path, r.keys))
}

func (r *fileReader) value(k, v *yaml.Node, path string) {
	if v.Kind == yaml.AliasNode {
		v = v.Alias // never leads to another alias by itself, and lists below take none: nothing multiplies
	}
	switch {
	case v.Kind == yaml.ScalarNode && v.Tag == "!!null":
		r.report(k, path, "has no value; give it one or leave it out")
	case v.Kind == yaml.ScalarNode:
		r.set(path, v.Value, k)
	case v.Kind == yaml.SequenceNode && r.kind(path) == List:
		items := make([]string, 0, len(v.Content))
		for _, item := range v.Content {
			if item.Kind != yaml.ScalarNode || item.Value == "" {
				r.report(item, path, "an entry of the list is not plain text")
				return
			}
			items = append(items, item.Value)
		}
		r.set(path, strings.Join(items, ","), k)
	case v.Kind == yaml.MappingNode && r.kind(path) == Map:
		r.mapping(k, v, path)
	case v.Kind == yaml.SequenceNode:
		r.report(v, path, "takes one value, not a list")
	default:
		r.report(v, path, "takes a value, not a group of keys")
	}
}

// mapping reads names and their values.
func (r *fileReader) mapping(k, v *yaml.Node, path string) {
	var names, values []string
	for i := 0; i+1 < len(v.Content); i += 2 {
		name, value := v.Content[i], v.Content[i+1]
		switch {
		case name.Kind != yaml.ScalarNode || name.Value == "<<":
			r.report(name, path, "a name must be plain text")
			return
		case strings.Contains(name.Value, "="):
			r.report(name, path, "the name %s has a '=' in it", quoted(name.Value))
			return
		case value.Kind != yaml.ScalarNode || value.Tag == "!!null":
			r.report(value, path, "the value of %s must be plain text; write \"\" for an empty one", name.Value)
			return
		}
		names, values = append(names, name.Value), append(values, value.Value)
	}
	r.set(path, mapText(names, values), k)
}

func (r *fileReader) set(path, value string, at *yaml.Node) {
	// A key may also be written with its dots, so two spellings can meet here.
	if first, twice := r.values[path]; twice {
		r.report(at, path, "is set twice; the first is at %s", first.where)
		return
	}
	r.values[path] = text{text: value, where: r.where(at), line: at.Line}
}

func (r *fileReader) kind(path string) Kind {
	for i := range r.keys {
		if r.keys[i].Name == path {
			return r.keys[i].Kind
		}
	}
	return String
}

// groupHint names a key of the group.
func (r *fileReader) groupHint(prefix string) string {
	for i := range r.keys {
		if strings.HasPrefix(r.keys[i].Name, prefix) {
			return "; one of its keys is " + r.keys[i].Name
		}
	}
	return ""
}

// yamlProblem says where the file stops being YAML.
func yamlProblem(path string, err error) Problem {
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		where := path
		if e.Mark.Line > 0 {
			where = fmt.Sprintf("%s:%d:%d", path, e.Mark.Line, e.Mark.Column)
		}
		return Problem{Where: where, Message: "is not YAML: " + e.Message}
	}
	return Problem{Where: path, Message: "is not YAML: " + err.Error()}
}

// cause drops the operation and the path that an *fs.PathError repeats.
func cause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
