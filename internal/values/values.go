// Package values reads values as people write them, in the configuration and in
// deployment.yaml alike: durations, sizes, whole numbers, and the names that were probably
// meant. What is wrong with a text comes back as a phrase that follows the text and says
// what to write instead.
package values

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
)

// The units of sizes, in bytes.
const (
	KiB = int64(1) << 10
	MiB = KiB << 10
	GiB = MiB << 10
)

// longest bounds every duration: what is longer is a slip of the pen.
const longest = 10 * 365 * 24 * time.Hour

// Duration reads a number with its unit, such as 1m30s, of least at the least. example
// is one that would be right.
func Duration(text string, least time.Duration, example string) (d time.Duration, why string) {
	example = "; write, for example, " + example
	d, err := time.ParseDuration(text)
	switch {
	case text == "":
		return 0, "is empty" + example
	case isNumber(text):
		return 0, "has no unit" + example
	case err != nil:
		return 0, "is not a duration; the units are ms, s, m and h, without spaces" + example
	case text[0] == '+' || text[0] == '-':
		return 0, "has a sign" + example
	case d < least:
		return 0, "is too short; the least is " + FormatDuration(least) + example
	case d > 0 && d < time.Millisecond:
		return 0, "is too short; the least is 1ms" + example
	case d > longest:
		return 0, "is longer than ten years" + example
	}
	return d, ""
}

// Int reads a whole number from lo to hi, both included.
func Int(text string, lo, hi int64, example string) (n int64, why string) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || text[0] == '+' {
		return 0, "is not a whole number; write, for example, " + example
	}
	if n < lo || n > hi {
		return 0, fmt.Sprintf("is out of range; it may be %d to %d", lo, hi)
	}
	return n, ""
}

// sizeForm is a number and its unit. Further text after the unit is no match.
//
//nolint:gochecknoglobals // compiled once, never changed
var sizeForm = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(KiB|MiB|GiB)$`)

// Size reads a number of KiB, MiB or GiB, from lo to hi bytes. hi 0 is more than any
// machine has.
func Size(text string, lo, hi int64, example string) (n int64, why string) {
	example = "; write, for example, " + example
	m := sizeForm.FindStringSubmatch(text)
	switch {
	case text == "":
		return 0, "is empty" + example
	case m == nil && isNumber(text):
		return 0, "has no unit; sizes take KiB, MiB or GiB" + example
	case m == nil:
		return 0, "is not a size; sizes take KiB, MiB or GiB, without spaces, since MB and M mean different things to different people" + example
	}
	unit := map[string]int64{"KiB": KiB, "MiB": MiB, "GiB": GiB}[m[2]]
	r, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return 0, "is not a size" + example
	}
	r.Mul(r, new(big.Rat).SetInt64(unit))
	if hi == 0 {
		hi = 1 << 50 // no machine has more, and no sum of two overflows
	}
	switch {
	case !r.IsInt():
		return 0, "is not a whole number of bytes" + example
	case r.Cmp(new(big.Rat).SetInt64(hi)) > 0:
		return 0, "is too large; the most is " + FormatSize(hi)
	case r.Cmp(new(big.Rat).SetInt64(lo)) < 0 || r.Sign() == 0:
		return 0, "is too small; the least is " + FormatSize(max(lo, 1))
	}
	return r.Num().Int64(), ""
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
	case n >= GiB && n%GiB == 0:
		return strconv.FormatInt(n/GiB, 10) + "GiB"
	case n >= MiB && n%MiB == 0:
		return strconv.FormatInt(n/MiB, 10) + "MiB"
	case n >= KiB && n%KiB == 0:
		return strconv.FormatInt(n/KiB, 10) + "KiB"
	default:
		return strconv.FormatInt(n, 10) + " bytes"
	}
}

// Nearest returns the candidate that text was most likely meant to be, or "" if
// none is near. A wrong case alone is always near.
func Nearest(text string, candidates []string) string {
	best, bound := "", max(2, len(text)/3)+1
	for _, c := range candidates {
		// The distance allocates by the length: what is that far off needs no look.
		if len(c)-len(text) >= bound || len(text)-len(c) >= bound {
			continue
		}
		d := levenshtein.ComputeDistance(strings.ToLower(text), strings.ToLower(c))
		if d < bound {
			best, bound = c, d
		}
	}
	return best
}

// Suggest returns the end of a message that names the nearest candidate; "" if none is.
func Suggest(text string, candidates []string) string {
	if near := Nearest(text, candidates); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}
