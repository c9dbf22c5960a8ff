// Command kstatus says what a deployment tool thinks of an object.
//
// Flux, Argo CD and `helm --wait` decide by the kstatus rules whether an object is done, still in progress or broken. Our
// conditions have to mean to them what they mean to a reader, so the tests ask the library itself instead of a copy of its rules.
//
// It reads objects as JSON on stdin, one after the other, and prints one line per object:
//
//	{"status":"InProgress","message":"…"}
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type verdict struct {
	Status  status.Status `json:"status"`
	Message string        `json:"message"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "kstatus:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	for n := 1; ; n++ {
		// The library compares generations as int64, which a plain map[string]any would turn into float64: decode through
		// unstructured, and never through encoding/json alone.
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read object %d: %w", n, err)
		}
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(raw); err != nil {
			return fmt.Errorf("decode object %d: %w", n, err)
		}
		result, err := status.Compute(&object)
		if err != nil {
			return fmt.Errorf("compute the status of object %d: %w", n, err)
		}
		if err := encoder.Encode(verdict{result.Status, result.Message}); err != nil {
			return err
		}
	}
}
