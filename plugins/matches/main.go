package main

import "github.com/elemental-conduit/conduit/pluginapi"

func main() { pluginapi.Main(element()) }
