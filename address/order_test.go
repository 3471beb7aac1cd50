package address

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// testOrder sorts the wanted list from 20 shuffles.
func testOrder(t *testing.T, compare func(a, b Path) int, want []string) {
	t.Helper()
	for seed := range uint64(20) {
		got := make([]Path, len(want))
		for i, s := range want {
			got[i] = MustParsePath(s)
		}
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		slices.SortFunc(got, compare)
		for i, p := range got {
			if p.String() != want[i] {
				t.Errorf("seed %d: place %d is %s, want %s", seed, i, p, want[i])
			}
		}
	}
}

func TestOrderGolden(t *testing.T) {
	testOrder(t, CompareWildcardFirst, []string{
		"/*", "/**", "/a", "/b", "/a/*", "/a/**", "/a/b", "*://a", "**x://q", "x://*", "x://a", "y://z",
	})
	testOrder(t, CompareWildcardLast, []string{
		"/a", "/b", "/*", "/**", "/a/b", "/a/*", "/a/**", "**x://q", "x://a", "x://*", "y://z", "*://a",
	})
}

// The original's own sort tests.
func TestOrderSeeded(t *testing.T) {
	digits := func(i int) (paths []string) {
		for j := range 5 {
			paths = append(paths, fmt.Sprintf("/foo/%d/bar/%d", i, j))
		}
		return paths
	}
	first := []string{"/bar/**", "/foo/**", "/foo/*/bar/*"}
	last := []string{"/bar/**", "/foo/**"}
	for i := range 5 {
		one, rest := fmt.Sprintf("/foo/%d/bar/*", i), fmt.Sprintf("/foo/%d/bar/**", i)
		first = append(append(first, one, rest), digits(i)...)
		last = append(append(last, digits(i)...), one, rest)
	}
	last = append(last, "/foo/*/bar/*")
	testOrder(t, CompareWildcardFirst, first)
	testOrder(t, CompareWildcardLast, last)

	// The same under a context comes behind.
	for _, list := range []*[]string{&first, &last} {
		for _, p := range slices.Clone(*list) {
			*list = append(*list, "test:/"+p)
		}
	}
	testOrder(t, CompareWildcardFirst, first)
	testOrder(t, CompareWildcardLast, last)
}

// Unlike the original, whose UTF-16 order is the other way round.
func TestOrderOfContextsIsByBytes(t *testing.T) {
	testOrder(t, CompareWildcardFirst, []string{"\uff5e://a", "\U0001f600://a"})
}
