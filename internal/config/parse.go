package config

import (
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// longest bounds every duration: what is longer is a slip of the pen.
const longest = 10 * 365 * 24 * time.Hour

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
		return nil, "is none of " + strings.Join(k.Enum, ", ") + suggest(text, k.Enum)
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
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || text[0] == '+' {
		return nil, "is not a whole number; write, for example, " + k.example()
	}
	hi := k.Max
	if hi == 0 {
		hi = 1<<63 - 1
	}
	if n < k.Min || n > hi {
		return nil, fmt.Sprintf("is out of range; it may be %d to %d", k.Min, hi)
	}
	return n, ""
}

// ParseDuration reads a duration as the table's keys do, for flags that are no
// keys. What is wrong with it comes back as a phrase that follows the text.
func ParseDuration(text string) (d time.Duration, why string) {
	parsed, why := (&Key{Kind: Duration}).parseDuration(text)
	if why != "" {
		return 0, why
	}
	d, _ = parsed.(time.Duration)
	return d, ""
}

func (k *Key) parseDuration(text string) (any, string) {
	example := "; write, for example, " + k.example()
	d, err := time.ParseDuration(text)
	switch {
	case text == "":
		return nil, "is empty" + example
	case isNumber(text):
		return nil, "has no unit" + example
	case err != nil:
		return nil, "is not a duration; the units are ms, s, m and h, without spaces" + example
	case text[0] == '+' || text[0] == '-':
		return nil, "has a sign" + example
	case d < time.Duration(k.Min):
		return nil, "is too short; the least is " + FormatDuration(time.Duration(k.Min)) + example
	case d > 0 && d < time.Millisecond:
		return nil, "is too short; the least is 1ms" + example
	case d > longest:
		return nil, "is longer than ten years" + example
	}
	return d, ""
}

// sizeForm is a number and its unit. Further text after the unit is no match.
//
//nolint:gochecknoglobals // compiled once, never changed
var sizeForm = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(KiB|MiB|GiB)$`)

func (k *Key) parseSize(text string) (any, string) {
	example := "; write, for example, " + k.example()
	m := sizeForm.FindStringSubmatch(text)
	switch {
	case text == "":
		return nil, "is empty" + example
	case m == nil && isNumber(text):
		return nil, "has no unit; sizes take KiB, MiB or GiB" + example
	case m == nil:
		return nil, "is not a size; sizes take KiB, MiB or GiB, without spaces, since MB and M mean different things to different people" + example
	}
	unit := map[string]int64{"KiB": kib, "MiB": mib, "GiB": gib}[m[2]]
	n, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return nil, "is not a size" + example
	}
	n.Mul(n, new(big.Rat).SetInt64(unit))
	hi := k.Max
	if hi == 0 {
		hi = 1 << 50 // no machine has more, and no sum of two overflows
	}
	switch {
	case !n.IsInt():
		return nil, "is not a whole number of bytes" + example
	case n.Cmp(new(big.Rat).SetInt64(hi)) > 0:
		return nil, "is too large; the most is " + FormatSize(hi)
	case n.Cmp(new(big.Rat).SetInt64(k.Min)) < 0 || n.Sign() == 0:
		return nil, "is too small; the least is " + FormatSize(max(k.Min, 1))
	}
	return n.Num().Int64(), ""
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
			return nil, fmt.Sprintf("has %q twice", name)
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

// isNumber reports whether text is a number and nothing else, so that the
// message can say what is missing.
func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}

// FormatDuration writes a duration as a person would: 5m0s as 5m.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// FormatSize writes a size in the largest unit that leaves it whole.
func FormatSize(n int64) string {
	switch {
	case n >= gib && n%gib == 0:
		return strconv.FormatInt(n/gib, 10) + "GiB"
	case n >= mib && n%mib == 0:
		return strconv.FormatInt(n/mib, 10) + "MiB"
	case n >= kib && n%kib == 0:
		return strconv.FormatInt(n/kib, 10) + "KiB"
	default:
		return strconv.FormatInt(n, 10) + " bytes"
	}
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
