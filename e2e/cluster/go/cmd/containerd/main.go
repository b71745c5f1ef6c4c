// Command containerd is containerd, and under the name `ctr` its client, without the plugins that need cgo.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	"github.com/containerd/containerd/v2/cmd/containerd/command"
	client "github.com/containerd/containerd/v2/cmd/ctr/app"
)

func main() {
	app := command.App()
	if filepath.Base(os.Args[0]) == "ctr" {
		app = client.New()
	}
	if err := app.Run(context.Background(), os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
