// Tools that are built from source at a pinned version: `make generate` builds them
// into .tools/. A file beside go.mod, so that nothing of theirs reaches the authors
// who import this module.
module github.com/elemental-conduit/conduit/tools

go 1.26.0

tool (
	google.golang.org/grpc/cmd/protoc-gen-go-grpc
	google.golang.org/protobuf/cmd/protoc-gen-go
)

require (
	google.golang.org/grpc/cmd/protoc-gen-go-grpc v1.6.2 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
