package metrics

import "github.com/elemental-conduit/conduit/address"

// maxDeclared is how many deployments, services and methods together are told
// apart. What is declared beyond is counted as unknown.
const maxDeclared = 8192

// series are the labels that a call is counted under.
type series struct{ deployment, service, method string }

// services are methods by service.
type services map[string]map[string]bool

// catalog holds what may be a label because somebody has declared it. It only
// grows, up to its limit.
type catalog struct {
	deployments map[string]services
	// names of deployments by id, since a caller may write either.
	names map[address.DeploymentID]string
	any   services // of all deployments
	size  int
}

func newCatalog() *catalog {
	return &catalog{deployments: map[string]services{}, names: map[address.DeploymentID]string{}, any: services{}}
}

// declare makes a method known, and reports whether there was room for it.
func (c *catalog) declare(s series, most int) bool {
	if c.deployments[s.deployment][s.service][s.method] {
		return true
	}
	if !declarable(s.deployment) || !declarable(s.service) || !declarable(s.method) || s.deployment == anyDeployment {
		return true // not for lack of room
	}
	if c.size+3 > most { // it may bring its deployment and its service
		return false
	}
	d := c.deployments[s.deployment]
	if d == nil {
		d = services{}
		c.deployments[s.deployment] = d
		c.names[address.UniqueDeploymentID(s.deployment)] = s.deployment
		c.size++
	}
	if d[s.service] == nil {
		d[s.service] = map[string]bool{}
		c.size++
	}
	d[s.service][s.method] = true
	c.size++
	if c.any[s.service] == nil {
		c.any[s.service] = map[string]bool{}
	}
	c.any[s.service][s.method] = true
	return true
}

// resolve returns the labels of a call from what its caller wrote: each part that
// is declared, and unknown from the first that is not.
func (c *catalog) resolve(s series) series {
	d, known := c.deployments[s.deployment]
	if !known {
		if s.deployment == "" || s.deployment == anyDeployment {
			s.deployment, d = anyDeployment, c.any
		} else if id, err := address.ParseDeploymentID(s.deployment); err == nil && c.names[id] != "" {
			s.deployment = c.names[id]
			d = c.deployments[s.deployment]
		} else {
			return series{unknown, unknown, unknown}
		}
	}
	switch methods, known := d[s.service]; {
	case !known:
		s.service, s.method = unknown, unknown
	case !methods[s.method]:
		s.method = unknown
	}
	return s
}
