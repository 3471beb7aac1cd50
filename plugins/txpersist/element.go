package main

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
)

const (
	serviceName = api.Service
	fileName    = "resources.db"

	readChunk = 256 << 10 // bytes of contents, or of a backup, in a message
)

// element puts the element together.
func element() pluginapi.Element {
	p := &persist{measured: newMeasured()}
	return pluginapi.Element{
		Name:       api.Element,
		Version:    "1.0.0",
		Attributes: attributes(),
		Metrics:    p.measured.list,
		Services:   []*pluginapi.Service{p.service()},
		Configure:  p.configure,
		Start:      p.start,
		Health:     p.health,
		Stop:       p.stop,
		Exclusive:  true, // the file has one owner
	}
}

// persist is the running element. All but store is set before the first call.
type persist struct {
	store *store.Store
	node  address.NodeID
	values
	looking  sync.Mutex
	measured *measured // guarded by looking
}

func (p *persist) service() *pluginapi.Service {
	s := pluginapi.NewService(serviceName)
	remote, admin := pluginapi.Remote(), pluginapi.MinLevel(pluginapi.Superuser)

	for _, m := range []struct{ method, op string }{
		{"Exists", api.OpExists},
		{"Lookup", api.OpLookup},
		{"Paths", api.OpPaths},
		{"Load", api.OpLoad},
		{"Tasks", api.OpTasks},
		{"Page", api.OpPage},
		{"Save", api.OpSave},
		{"Put", api.OpPut},
		{"Update", api.OpUpdate},
		{"Append", api.OpAppend},
		{"WriteAt", api.OpWriteAt},
		{"LinkNew", api.OpLinkNew},
		{"Link", api.OpLink},
		{"Unlink", api.OpUnlink},
		{"Remove", api.OpRemove},
		{"RemoveMatching", api.OpRemoveMatching},
		{"CreateTask", api.OpCreateTask},
		{"DeleteTask", api.OpDeleteTask},
		{"FinishTask", api.OpFinishTask},
	} {
		opts := []pluginapi.MethodOption{remote}
		if reads(m.op) {
			opts = append(opts, pluginapi.Idempotent())
		}
		unary[*persistpb.Operation, *persistpb.Result](s, m.method, api.OperationOf, p.single(m.op), opts...)
	}
	unary[*persistpb.Batch, *persistpb.BatchReply](s, "Transact", api.BatchOf, p.transact, remote)
	stream[*persistpb.Operation, *persistpb.Listing](s, "List", api.OperationOf, p.list, remote, pluginapi.Idempotent())
	stream[*persistpb.Operation, *persistpb.Piece](s, "Read", api.OperationOf, p.read, remote, pluginapi.Idempotent())
	upload[*persistpb.Operation, *persistpb.WriteReply](s, "Write", api.OperationOf, p.write, remote)
	duplex[*persistpb.Operation, *persistpb.Result](s, "Transaction", api.OperationOf, p.transaction, remote)
	stream[*persistpb.WatchRequest, *persistpb.Event](s, "Watch", api.WatchRequestOf, p.watch, remote, pluginapi.Idempotent())
	stream[*persistpb.TaskRequest, *persistpb.Task](s, "WatchTasks", api.TaskRequestOf, p.watchTasks, remote, pluginapi.Idempotent())

	pluginapi.Handle(s, "Check", p.check, remote, admin, pluginapi.Idempotent())
	pluginapi.HandleStream(s, "Backup", p.backup, remote, admin)
	pluginapi.Handle(s, "Stats", p.stats, remote, admin, pluginapi.Idempotent())
	return s
}

func (p *persist) configure(_ context.Context, c pluginapi.Configuration) ([]string, error) {
	instance, err := address.ParseInstanceID(c.Instance)
	if err != nil {
		return nil, err
	}
	p.node = address.NewNodeID(instance, address.UniqueDeploymentID(c.Deployment))
	if err := p.parse(c.Attributes); err != nil {
		return nil, err
	}
	return nil, nil
}

func (p *persist) start(ctx context.Context, host pluginapi.Host) (err error) {
	p.store, err = store.Open(ctx, store.Options{
		File:   filepath.Join(host.DataDir(), fileName),
		Node:   p.node,
		Logger: host.Logger(),
		MaxAge: p.maxAge, MaxOpen: int(p.maxOpen), MaxOpenEach: int(p.maxOpenEach), MaxScope: int(p.maxScope), MaxPath: int(p.maxPath),
		MaxContents: p.maxContents, MaxWrites: p.maxWrites, MaxWatches: int(p.maxWatches), MaxWatchesEach: int(p.maxWatchesEach), MaxSize: p.maxSize,
	})
	return err
}

func (p *persist) stop(context.Context) error { return p.store.Close() }

func (p *persist) health(context.Context) pluginapi.Health {
	p.looking.Lock() // nobody promises that one look ends before the next begins
	p.measured.look(p.store.Stats())
	p.looking.Unlock()
	if err := p.store.Failed(); err != nil {
		return pluginapi.Unhealthy("%v", err)
	}
	return pluginapi.Healthy()
}
