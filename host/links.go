package host

import "github.com/elemental-conduit/conduit/internal/link"

// PluginLink is the link to a process that runs now.
type PluginLink struct {
	// Name is "<deployment>/<element>".
	Name string
	Conn *link.Conn
}

// Links returns the links to the processes that take calls, in the order of the
// deployments' names.
func (h *Host) Links() []PluginLink {
	h.mu.Lock()
	list := h.list()
	h.mu.Unlock()
	var links []PluginLink
	for _, e := range list {
		e.mu.Lock()
		g := e.gen
		e.mu.Unlock()
		if g != nil && g.conn != nil {
			links = append(links, PluginLink{Name: e.deployment + "/" + g.desc.GetElement(), Conn: g.conn})
		}
	}
	return links
}
