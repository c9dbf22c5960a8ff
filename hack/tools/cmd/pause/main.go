// Command pause does nothing until it is told to end: the container that keeps a pod's namespaces open.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGINT, syscall.SIGTERM)
	// As the first process of a pod it inherits orphans, and has to reap them.
	signal.Ignore(syscall.SIGCHLD)
	<-ends
}
