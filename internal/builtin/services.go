package builtin

import (
	"errors"

	"github.com/elemental-conduit/conduit/address"
)

// Services are the built-in services of one instance. All methods may be called
// concurrently.
type Services struct {
	o        Options
	instance string
	id       string // of the deployment
	methods  map[string]map[string]method
}

// New makes the services of an instance. They do nothing but answer.
func New(o Options) (*Services, error) {
	if o.Authorize == nil || o.Inventory == nil || o.Lifecycle == nil {
		return nil, errors.New("builtin: Options.Authorize, Inventory and Lifecycle must be set")
	}
	return &Services{
		o: o, instance: o.Instance.String(),
		id: address.UniqueDeploymentID(address.BuiltinDeployment).String(),
		methods: map[string]map[string]method{
			"conduit.v1.Instance": instanceMethods(),
			"conduit.v1.Admin":    adminMethods(),
		},
	}, nil
}

// isMine reports whether an address names the built-in services of this instance.
func (s *Services) isMine(instance, deployment []byte) bool {
	if string(deployment) != address.BuiltinDeployment && string(deployment) != s.id {
		return false
	}
	if len(instance) == 0 || string(instance) == "*" || string(instance) == s.instance {
		return true
	}
	id, err := address.ParseInstanceID(string(instance)) // another spelling
	return err == nil && id == s.o.Instance
}
