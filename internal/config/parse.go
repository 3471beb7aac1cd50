package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit/internal/values"
)

// parse reads the text of a value. What is wrong with it comes back as a phrase
// that follows the text, and says what to write instead.
func (k *Key) parse(text string) (parsed any, why string) {
	switch k.Kind {
	case Bool:
		switch text {
		case "true":
			return true, ""
		case "false":
			return false, ""
		}
		return nil, "is not true or false"
	case Int:
		return k.parseInt(text)
	case Duration:
		return k.parseDuration(text)
	case Size:
		return k.parseSize(text)
	case List:
		return parseList(text)
	case Map:
		return parseMap(text)
	case Enum:
		if slices.Contains(k.Enum, text) {
			return text, ""
		}
		return nil, "is none of " + strings.Join(k.Enum, ", ") + values.Suggest(text, k.Enum)
	default:
		switch {
		case text == "" && !k.Optional:
			return nil, "is empty; leave the key out for its default"
		case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return nil, "has a control character in it"
		}
		return text, ""
	}
}

func (k *Key) parseInt(text string) (any, string) {
	hi := k.Max
	if hi == 0 {
		hi = 1<<63 - 1
	}
	n, why := values.Int(text, k.Min, hi, k.example())
	if why != "" {
		return nil, why
	}
	return n, ""
}

// ParseDuration reads a duration as the table's keys do, for flags that are no
// keys. What is wrong with it comes back as a phrase that follows the text.
func ParseDuration(text string) (d time.Duration, why string) {
	return values.Duration(text, 0, (&Key{Kind: Duration}).example())
}

func (k *Key) parseDuration(text string) (any, string) {
	d, why := values.Duration(text, time.Duration(k.Min), k.example())
	if why != "" {
		return nil, why
	}
	return d, ""
}

func (k *Key) parseSize(text string) (any, string) {
	n, why := values.Size(text, k.Min, k.Max, k.example())
	if why != "" {
		return nil, why
	}
	return n, ""
}

func parseList(text string) (any, string) {
	if text == "" {
		return []string(nil), ""
	}
	items := strings.Split(text, ",")
	for i, item := range items {
		items[i] = strings.TrimSpace(item)
		if items[i] == "" {
			return nil, "has an empty entry; separate entries by one comma"
		}
	}
	return items, ""
}

// parseMap reads name=value,name=value. A comma that belongs to a value has a backslash
// before it, and a backslash another one.
func parseMap(text string) (any, string) {
	const example = `; write name=value, separated by commas, and \, for a comma in a value`
	values := map[string]string{}
	for text != "" {
		var entry strings.Builder
		i := 0
		for ; i < len(text) && text[i] != ','; i++ {
			if text[i] == '\\' {
				if i++; i == len(text) || text[i] != ',' && text[i] != '\\' {
					return nil, `has a '\' before something else than a comma or another '\'` + example
				}
			}
			entry.WriteByte(text[i])
		}
		if i == len(text)-1 {
			return nil, "ends with a comma" + example
		}
		text = strings.TrimPrefix(text[i:], ",")
		name, value, ok := strings.Cut(entry.String(), "=")
		name = strings.TrimSpace(name)
		_, twice := values[name]
		switch {
		case !ok || name == "":
			return nil, "has an entry that is not name=value" + example
		case twice:
			return nil, fmt.Sprintf("has %s twice", quoted(name))
		}
		values[name] = value
	}
	return values, ""
}

// mapText writes a map as parseMap reads it.
func mapText(names, values []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `,`, `\,`)
	var b strings.Builder
	for i, name := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(escape.Replace(name + "=" + values[i]))
	}
	return b.String()
}

// number is the value of an Int, a Duration or a Size, for comparing.
func (v *Value) number() int64 {
	switch n := v.parsed.(type) {
	case int64:
		return n
	case time.Duration:
		return int64(n)
	default:
		return 0
	}
}
