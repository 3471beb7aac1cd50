package pluginlink

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// TestGuide holds docs/plugins-in-any-language.md to the definitions: who writes a plugin
// from it has nothing else.
func TestGuide(t *testing.T) {
	raw, err := os.ReadFile("../../docs/plugins-in-any-language.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	messages := map[string]protoreflect.MessageDescriptor{}
	for _, f := range []protoreflect.FileDescriptor{conduitv1.File_conduit_v1_conduit_proto, conduitv1.File_conduit_v1_plugin_proto} {
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			messages[string(m.Name())] = m
		}
	}
	rows := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\d+) \\| `(\\w+)` \\| (.*) \\|$").FindAllStringSubmatch(page, -1)
	if len(rows) < 50 {
		t.Fatalf("found %d rows: the pattern must be wrong", len(rows))
	}
	for _, row := range rows {
		m := messages[row[1]]
		if m == nil {
			t.Errorf("there is no message %s", row[1])
			continue
		}
		f := m.Fields().ByName(protoreflect.Name(row[3]))
		if f == nil || strconv.Itoa(int(f.Number())) != row[2] {
			t.Errorf("%s.%s is not number %s", row[1], row[3], row[2])
			continue
		}
		says, kind := row[4], f.Kind()
		var fits bool
		switch {
		case f.IsMap():
			fits = strings.HasPrefix(says, "map of string to string")
		case f.IsList() && kind == protoreflect.StringKind:
			fits = strings.HasPrefix(says, "list of string")
		case f.IsList():
			fits = says == "list of `"+string(f.Message().Name())+"`"
		case kind == protoreflect.MessageKind:
			fits = strings.HasPrefix(says, "`"+string(f.Message().Name())+"`")
		case kind == protoreflect.StringKind, kind == protoreflect.BytesKind, kind == protoreflect.BoolKind:
			fits = strings.HasPrefix(says, kind.String())
		case kind == protoreflect.EnumKind:
			fits = regexp.MustCompile(`^(number|\d |as )`).MatchString(says)
		default:
			fits = strings.HasPrefix(says, "number")
		}
		if !fits {
			t.Errorf("%s.%s is a %s, and the page says %q", row[1], row[3], kind, says)
		}
	}
	for _, want := range []string{
		cookieKey, cookieValue, envToken, envMaxMessage, "PLUGIN_UNIX_SOCKET_DIR", codecName,
		fmt.Sprintf("1|%d|unix|", ProtocolVersion), fmt.Sprintf("`version_min` %d, `version_max` %d", link.Version, link.Version),
		fmt.Sprintf("You have %d s for all that", int(DefaultStartTimeout.Seconds())),
		fmt.Sprintf("`ack` set, within %d s", int(pluginDeadAfter.Seconds())),
		fmt.Sprintf("number; 0 = %d", link.DefaultMaxMessage), fmt.Sprintf("number; 0 = %d", link.DefaultMaxCalls),
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	methods := conduitv1.File_conduit_v1_plugin_proto.Services().ByName("Plugin").Methods()
	for i := range methods.Len() {
		if name := fmt.Sprintf("`/conduit.v1.Plugin/%s`", methods.Get(i).Name()); !strings.Contains(page, name) {
			t.Errorf("the page has no %s", name)
		}
	}
}
