package host

import "github.com/elemental-conduit/conduit/internal/link"

// PluginLink is the link to a process that runs now.
type PluginLink struct {
	// Name is "<deployment>/<element>".
	Name string
	Conn *link.Conn
}

// Links returns the links to the processes that take calls, or finish those that they
// have, in the order of the deployments' names. Generations of one element share its name.
func (h *Host) Links() []PluginLink {
	h.mu.Lock()
	list := h.list()
	h.mu.Unlock()
	var links []PluginLink
	for _, e := range list {
		for _, g := range e.generations() {
			links = append(links, PluginLink{Name: e.deployment + "/" + g.desc.GetElement(), Conn: g.conn})
		}
	}
	return links
}
