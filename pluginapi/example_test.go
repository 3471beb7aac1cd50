package pluginapi_test //nolint:testableexamples // a plugin serves: it has no output

import (
	"context"
	"fmt"

	"github.com/elemental-conduit/conduit/pluginapi"
)

type GreetRequest struct {
	Name string `json:"name"`
}

type GreetReply struct {
	Text string `json:"text"`
}

// The smallest plugin: its func main.
func Example() {
	greeter := pluginapi.NewService("example.Greeter")            // pluginapi.Named("formal") makes it example.Greeter#formal
	pluginapi.Handle(greeter, "Greet", greet, pluginapi.Remote()) // without Remote(): not callable from outside
	pluginapi.HandleStream(greeter, "Count", count, pluginapi.Remote(), pluginapi.MinLevel(pluginapi.Anonymous))
	pluginapi.Main(pluginapi.Element{Name: "greeter", Version: "1.0.0", Services: []*pluginapi.Service{greeter}})
}

func greet(_ context.Context, in GreetRequest) (GreetReply, error) {
	if in.Name == "" {
		return GreetReply{}, pluginapi.Errorf(pluginapi.InvalidArgument, "name is empty")
	}
	return GreetReply{Text: fmt.Sprintf("Hello, %s!", in.Name)}, nil
}

func count(_ context.Context, n int, send pluginapi.Sender[int]) error {
	for i := range n {
		if err := send(i); err != nil {
			return err
		}
	}
	return nil
}
