// Command volumes serves one volume: its content over HTTP on one listener that it
// inherits, and mounts of it to guests whose connections it is handed on another. The worker starts it in a jail where the volume is all
// there is, as a user that owns nothing else.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"space/agent/fuse"
	"space/agent/volume"
	"space/agent/volumeapi"
)

const memoryBytes = 160 << 20

func main() {
	dir := flag.String("volume", "/volume", "folder of the volume")
	contentFD := flag.Uint("content-fd", 3, "listener for HTTP")
	controlFD := flag.Uint("control-fd", 4, "listener for the worker")
	limit := flag.Int64("limit-bytes", 0, "how much the volume may hold")
	reserve := flag.Int64("reserve-bytes", 0, "how much of the file system stays free")
	flag.Parse()
	debug.SetMemoryLimit(memoryBytes)
	if err := run(*dir, uintptr(*contentFD), uintptr(*controlFD), *limit, *reserve); err != nil {
		fmt.Fprintln(os.Stderr, "volumes:", err)
		os.Exit(1)
	}
}

func run(dir string, contentFD, controlFD uintptr, limit, reserve int64) error {
	content, err := listener(contentFD)
	if err != nil {
		return err
	}
	control, err := listener(controlFD)
	if err != nil {
		return err
	}
	tree, err := volume.Open(dir, limit, reserve)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() {
		server := &http.Server{Handler: volumeapi.New(tree), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
		failed <- server.Serve(content)
	}()
	go func() { failed <- newGuests(tree, fuse.NewLocks()).serve(control.(*net.UnixListener)) }()
	return <-failed
}

func listener(fd uintptr) (net.Listener, error) {
	file := os.NewFile(fd, "listener")
	defer file.Close()
	return net.FileListener(file)
}
