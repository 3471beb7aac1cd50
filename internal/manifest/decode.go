package manifest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/elemental-conduit/conduit/internal/values"
)

// Parse reads the text of a deployment.yaml; path is for what is said of it. It looks at
// the text alone, not at the files that it names. The error is an [*Error].
func Parse(path string, text []byte) (*Manifest, error) {
	m := &Manifest{path: path, lines: map[string]int{}}
	d := &decoder{path: path, lines: m.lines}
	if root := d.document(text, "a deployment.yaml"); root != nil {
		d.object(root, reflect.ValueOf(m).Elem(), "")
		d.check(m)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return m, nil
}

// ParseAttributes reads the text of an attributes_file: a mapping of names to values, as
// the key attributes has. The error is an [*Error], and shows no value.
func ParseAttributes(path string, text []byte) (map[string]string, error) {
	d := &decoder{path: path, lines: map[string]int{}, secret: true}
	attributes := map[string]string{}
	if root := d.document(text, "an attributes_file"); root != nil {
		d.mapping(root, reflect.ValueOf(&attributes).Elem(), "")
		d.checkNames("", attributes, attributeFault)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return attributes, nil
}

// decoder walks the nodes of a document instead of having it decoded, since only nodes
// know their line. An alias is refused: nothing multiplies.
type decoder struct {
	path     string
	lines    map[string]int
	problems []Problem
	secret   bool // nothing of the text but its keys may be shown
}

func (d *decoder) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return &Error{d.problems}
}

func (d *decoder) report(line int, key, format string, args ...any) {
	if len(d.problems) < 100 { // more helps nobody
		d.problems = append(d.problems, Problem{Path: d.path, Line: line, Key: key, Message: fmt.Sprintf(format, args...)})
	}
}

// document returns the one mapping that a text holds; nil if it holds nothing, or
// something is wrong.
func (d *decoder) document(text []byte, what string) *yaml.Node {
	switch {
	case len(text) > MaxFile:
		d.report(0, "", "it is larger than %s: that is not %s", values.FormatSize(MaxFile), what)
		return nil
	case !utf8.Valid(text):
		d.report(0, "", "it is not UTF-8 text: save it as UTF-8")
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err != nil {
		d.report(0, "", "it is not YAML: %v", err)
		return nil
	}
	var doc, second yaml.Node
	if err := loader.Load(&doc); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		d.notYAML(err)
		return nil
	}
	if err := loader.Load(&second); err == nil {
		d.report(second.Line, "", "a second document begins here; %s holds one", what)
		return nil
	} else if !errors.Is(err, io.EOF) {
		d.notYAML(err)
		return nil
	}
	if len(doc.Content) != 1 {
		return nil
	}
	switch root := doc.Content[0]; {
	case isNull(root):
		return nil
	case root.Kind != yaml.MappingNode:
		d.report(root.Line, "", "%s is a mapping of keys to values, such as `name: value`", what)
		return nil
	default:
		return root
	}
}

func (d *decoder) notYAML(err error) {
	if d.secret { // the parser's own words may quote what it could not read
		line := 0
		if e, ok := errors.AsType[*yaml.LoadError](err); ok {
			line = e.Mark.Line
		}
		d.report(line, "", "it is not YAML; write `name: value` on each line, with quotes around a value that has special characters")
		return
	}
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		d.report(e.Mark.Line, "", "it is not YAML: %s", e.Message)
		return
	}
	d.report(0, "", "it is not YAML: %v", err)
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// join makes the path of a key.
func join(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

// entries calls each with the keys of a mapping and their values, and reports what is no
// key.
func (d *decoder) entries(n *yaml.Node, at string, each func(k, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		d.report(n.Line, at, "%s", d.notA(n, "a mapping of names to values"))
		return
	}
	if len(n.Content)/2 > maxEntries {
		d.report(n.Line, at, "has %d entries, more than %d", len(n.Content)/2, maxEntries)
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case k.Kind != yaml.ScalarNode || isNull(k):
			d.report(k.Line, at, "a key must be plain text")
			continue
		case k.Value == "<<" && k.Style == 0:
			d.report(k.Line, at, "merge keys are not read; write the keys out")
			continue
		}
		if line, twice := seen[k.Value]; twice {
			d.report(k.Line, join(at, k.Value), "is set twice; the first is in line %d", line)
			continue
		}
		seen[k.Value] = k.Line
		each(k, v)
	}
}

// notA says what a node is instead of what.
func (*decoder) notA(n *yaml.Node, what string) string {
	switch {
	case n.Kind == yaml.AliasNode:
		return "is an alias; write its value out"
	case isNull(n):
		return "has no value; give it one or leave it out"
	case n.Kind == yaml.ScalarNode:
		return fmt.Sprintf("is %q; it takes %s", shorten(n.Value), what)
	case n.Kind == yaml.SequenceNode:
		return "is a list; it takes " + what
	}
	return "is a mapping; it takes " + what
}

func shorten(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "..."
	}
	return s
}

// object reads a mapping into a struct.
func (d *decoder) object(n *yaml.Node, into reflect.Value, at string) {
	fields := fieldsOf(into.Type())
	d.entries(n, at, func(k, v *yaml.Node) {
		path := join(at, k.Value)
		f, ok := fields[k.Value]
		if !ok {
			d.report(k.Line, path, "is not a key of %s%s", Name, d.suggest(k.Value, at, fields))
			return
		}
		d.lines[path] = k.Line
		d.value(v, into.FieldByIndex(f.Index), f.Tag, path)
	})
}

// fieldsOf returns the fields of a struct by their keys.
func fieldsOf(t reflect.Type) map[string]reflect.StructField {
	fields := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(t) {
		if key, ok := f.Tag.Lookup("yaml"); ok {
			fields[key] = f
		}
	}
	return fields
}

// suggest names the key that was meant: of the same mapping, or one of that name at
// another place.
func (*decoder) suggest(key, at string, fields map[string]reflect.StructField) string {
	var names []string
	for name := range fields {
		names = append(names, join(at, name))
	}
	slices.Sort(names)
	if s := values.Suggest(join(at, key), names); s != "" {
		return s
	}
	for _, path := range Keys() {
		if last := path[strings.LastIndexByte(path, '.')+1:]; strings.EqualFold(last, key) {
			return "; did you mean " + path + "?"
		}
	}
	return "; the keys are " + strings.Join(names, ", ")
}

// Keys returns the paths of all keys, such as "drain.timeout" and "elements[].path",
// sorted.
func Keys() []string {
	var keys []string
	var walk func(t reflect.Type, at string)
	walk = func(t reflect.Type, at string) {
		for key, f := range fieldsOf(t) {
			path := join(at, key)
			keys = append(keys, path)
			switch {
			case f.Type.Kind() == reflect.Struct:
				walk(f.Type, path)
			case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
				walk(f.Type.Elem(), path+"[]")
			}
		}
	}
	walk(reflect.TypeFor[Manifest](), "")
	slices.Sort(keys)
	return keys
}

// value reads a node into a field.
func (d *decoder) value(n *yaml.Node, into reflect.Value, tag reflect.StructTag, at string) {
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	switch into.Kind() {
	case reflect.Struct:
		d.object(n, into, at)
	case reflect.Map:
		d.mapping(n, into, at)
	case reflect.Slice:
		d.list(n, into, tag, at)
	default:
		if why := d.scalar(n, into, tag); why != "" {
			d.report(n.Line, at, "%s", why)
		}
	}
}

// mapping reads a mapping of names to scalars; each is kept as it is written.
func (d *decoder) mapping(n *yaml.Node, into reflect.Value, at string) {
	m := reflect.MakeMap(into.Type())
	d.entries(n, at, func(k, v *yaml.Node) {
		path := join(at, k.Value)
		d.lines[path] = k.Line
		if v.Kind != yaml.ScalarNode || isNull(v) {
			d.report(k.Line, path, "%s", d.notA(v, "a text, a number, or true or false"))
			return
		}
		m.SetMapIndex(reflect.ValueOf(k.Value), reflect.ValueOf(v.Value))
	})
	into.Set(m)
}

func (d *decoder) list(n *yaml.Node, into reflect.Value, tag reflect.StructTag, at string) {
	switch {
	case n.Kind != yaml.SequenceNode:
		d.report(n.Line, at, "%s", d.notA(n, "a list"))
		return
	case len(n.Content) > maxEntries:
		d.report(n.Line, at, "has %d entries, more than %d", len(n.Content), maxEntries)
		return
	}
	list := reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		path := fmt.Sprintf("%s[%d]", at, i)
		d.lines[path] = item.Line
		if list.Index(i).Kind() == reflect.String { // an argument is kept as it is written
			if item.Kind != yaml.ScalarNode || isNull(item) {
				d.report(item.Line, path, "%s", d.notA(item, "a text, a number, or true or false"))
				continue
			}
			list.Index(i).SetString(item.Value)
			continue
		}
		d.value(item, list.Index(i), tag, path)
	}
	into.Set(list)
}

// scalar reads one value, or says what is wrong with it.
func (d *decoder) scalar(n *yaml.Node, into reflect.Value, tag reflect.StructTag) (why string) {
	form := map[reflect.Kind]string{reflect.Bool: "true or false", reflect.Int: "a whole number", reflect.Float64: "a number"}[into.Kind()]
	if form == "" {
		form = "a text"
	}
	if n.Kind != yaml.ScalarNode || isNull(n) {
		return d.notA(n, form)
	}
	text, eg := n.Value, tag.Get("eg")
	quoted := func(why string) string {
		if why != "" {
			why = fmt.Sprintf("%q %s", shorten(text), why)
		}
		return why
	}
	switch v := into.Addr().Interface().(type) {
	case *bool:
		if n.Tag != "!!bool" {
			return d.notA(n, form)
		}
		*v = strings.EqualFold(text, "true")
	case *int:
		if n.Tag != "!!int" {
			return d.notA(n, "a whole number, such as "+eg)
		}
		lo, hi := bound(tag, "min"), bound(tag, "max")
		i, why := values.Int(text, lo, hi, eg)
		*v = int(i)
		return quoted(why)
	case *float64:
		if n.Tag != "!!int" && n.Tag != "!!float" {
			return d.notA(n, "a number, such as "+eg)
		}
		f, err := strconv.ParseFloat(text, 64)
		if hi := float64(bound(tag, "max")); err != nil || math.IsNaN(f) || f <= 0 || f > hi {
			return quoted(fmt.Sprintf("is out of range; it is more than 0 and at most %g", hi))
		}
		*v = f
	case *time.Duration:
		least, _ := time.ParseDuration(tag.Get("min"))
		var why string
		*v, why = values.Duration(text, least, eg)
		return quoted(why)
	case *Size:
		least, _ := values.Size(tag.Get("min"), 0, 0, eg)
		b, why := values.Size(text, least, 0, eg)
		*v = Size(b)
		return quoted(why)
	case interface{ words() []string }:
		if words := v.words(); !slices.Contains(words, text) {
			return quoted("is none of " + strings.Join(words, ", ") + values.Suggest(text, words))
		}
		into.SetString(text)
	default: // a string
		if n.Tag != "!!str" {
			return fmt.Sprintf("is %s, which YAML does not read as a text; write %q", text, text)
		}
		into.SetString(text)
	}
	return ""
}

func bound(tag reflect.StructTag, name string) int64 {
	n, _ := strconv.ParseInt(tag.Get(name), 10, 64)
	return n
}
