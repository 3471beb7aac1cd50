package pluginapi_test

import (
	"bytes"
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
)

func TestAttributes(t *testing.T) {
	var host pluginapi.Host
	configured := map[string]string{}
	e := pluginapi.Element{
		Name: "e",
		Attributes: []pluginapi.Attribute{
			{Name: "greeting", Default: "hello"}, {Name: "motto", Default: "none"}, {Name: "password", Sensitive: true}, {Name: "unset"},
		},
		Configure: func(_ context.Context, c pluginapi.Configuration) ([]string, error) {
			maps.Copy(configured, c.Attributes)
			c.Attributes["greeting"] = "changed" // its own copy
			return nil, nil
		},
		Start: func(_ context.Context, h pluginapi.Host) error { host = h; return nil },
	}
	plugintest.Start(t, e, plugintest.Attributes(map[string]string{"motto": "mine", "password": "p"}), plugintest.SensitiveAttributes(map[string]string{"key": "k"}))
	want := map[string]string{"greeting": "hello", "motto": "mine", "password": "p", "key": "k"}
	if !maps.Equal(configured, want) || !maps.Equal(host.Attributes(), want) {
		t.Errorf("configured with %v, then told %v, want %v", configured, host.Attributes(), want)
	}
	host.Attributes()["greeting"] = "changed"
	if host.Attribute("greeting") != "hello" || host.Attribute("none") != "" {
		t.Errorf("they can be changed: %v", host.Attributes())
	}
	for name, sensitive := range map[string]bool{"password": true, "key": true, "motto": false, "unset": false, "none": false} {
		if host.IsSensitive(name) != sensitive {
			t.Errorf("sensitive %s: %v", name, !sensitive)
		}
	}
	if (pluginapi.Host{}).IsSensitive("key") {
		t.Error("the zero Host knows something")
	}
}

func TestAttributeMistakes(t *testing.T) {
	e := pluginapi.Element{Name: "e", Attributes: []pluginapi.Attribute{
		{},
		{Name: "a b"},
		{Name: "twice"},
		{Name: "twice"},
		{Name: "secret", Sensitive: true, Default: "hunter2"},
		{Name: "needed", Required: true, Default: "x"},
		{Name: "fine", Required: true, Sensitive: true, Description: "a fine one"},
	}}
	err := e.Check()
	if err == nil {
		t.Fatal("no mistake was found")
	}
	lines := strings.Split(err.Error(), "\n")
	for i, want := range []string{`attribute "": its name is empty`, `attribute "a b": its name has a space`, `"twice": it is declared twice`, `"secret": it is sensitive and has a default`, `"needed": it is required and has a default`} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Errorf("the mistakes are %q, want %q at %d", lines, want, i)
		}
	}
	if len(lines) != 5 || bytes.Contains([]byte(err.Error()), []byte("hunter2")) {
		t.Errorf("the mistakes are %q", lines)
	}
}
