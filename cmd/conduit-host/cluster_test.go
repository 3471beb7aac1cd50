package main

import (
	"testing"

	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

// hostsOnly is a hosting that has some deployments.
type hostsOnly struct {
	nothing
	list []*conduitv1.DeploymentInfo
}

func (h hostsOnly) Deployments() []*conduitv1.DeploymentInfo { return h.list }

// What an instance that does not host an element says of itself names what it lacks.
func TestNotHosted(t *testing.T) {
	here, elsewhere := address.RandomInstanceID(), address.RandomInstanceID()
	echo := hostsOnly{list: []*conduitv1.DeploymentInfo{{Id: address.UniqueDeploymentID("echo").String(), Name: "echo"}}}
	for _, tt := range []struct {
		name    string
		host    hosting
		address string
		want    registry.Verdict
	}{
		{"hosts nothing", nothing{}, "*://echo/echo/a.B", registry.NoDeployment},
		{"hosts nothing, any", nothing{}, "*://*/echo/a.B", registry.NoDeployment},
		{"another deployment", echo, "*://other/echo/a.B", registry.NoDeployment},
		{"another element", echo, "*://echo/other/a.B", registry.NoElement},
		{"another element, any", echo, "*://*/other/a.B", registry.NoElement},
		{"its own id", echo, here.String() + "://echo/other/a.B", registry.NoElement},
		{"another's id", echo, elsewhere.String() + "://echo/other/a.B", registry.AnotherInstance},
	} {
		i := &instance{id: here, host: tt.host}
		if got := i.notHosted(address.MustParse(tt.address)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
