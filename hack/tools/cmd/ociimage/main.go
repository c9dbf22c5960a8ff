// ociimage packs static files into a container image FROM scratch: an OCI image layout in a tar file. The same input gives the
// same bytes, wherever and whenever it is packed.
//
//	ociimage --name localhost/fencedlock:0.1.0 --entrypoint /fencedlock --user 65532:65532 --out image.tar fencedlock=target/fencedlock
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "ociimage:", err)
		os.Exit(1)
	}
}

func run() error {
	name := flag.String("name", "", "the image's name and tag")
	entrypoint := flag.String("entrypoint", "", "the program that the container runs")
	user := flag.String("user", "65532:65532", "the user and group that it runs as")
	architecture := flag.String("architecture", "amd64", "the machine that it is for, as Go names it")
	labels := flag.String("labels", "", "labels, as KEY=VALUE separated by commas")
	out := flag.String("out", "", "the tar file to write")
	flag.Parse()
	if *name == "" || *entrypoint == "" || *out == "" || flag.NArg() == 0 {
		return fmt.Errorf("--name, --entrypoint, --out and at least one PATH=FILE are needed")
	}
	layer, err := pack(flag.Args())
	if err != nil {
		return err
	}
	var compressed bytes.Buffer
	// The header has neither a name nor a time, so that it is the same each time.
	writer, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := writer.Write(layer); err != nil {
		return err
	}
	if err := writer.Close(); err != nil {
		return err
	}
	machine := platform{Architecture: *architecture, OS: "linux"}
	config, err := json.Marshal(map[string]any{
		"architecture": machine.Architecture, "os": machine.OS,
		"config": map[string]any{"Entrypoint": []string{*entrypoint}, "User": *user, "WorkingDir": "/", "Labels": pairs(*labels)},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": describe(configType, config),
		"layers": []descriptor{describe(layerType, compressed.Bytes())},
	})
	if err != nil {
		return err
	}
	top := describe(manifestType, manifest)
	top.Platform = &machine
	tag := (*name)[strings.LastIndex(*name, ":")+1:]
	top.Annotations = map[string]string{"io.containerd.image.name": *name, "org.opencontainers.image.ref.name": tag}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{top}})
	if err != nil {
		return err
	}
	if err := write(*out, index, config, compressed.Bytes(), manifest); err != nil {
		return err
	}
	fmt.Println(*name, top.Digest)
	return nil
}

// pack makes the layer: the files, and the folders above them.
func pack(files []string) ([]byte, error) {
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	made := map[string]bool{".": true}
	for _, file := range files {
		target, source, found := strings.Cut(file, "=")
		if !found {
			return nil, fmt.Errorf("%q is not PATH=FILE", file)
		}
		for _, folder := range folders(target) {
			if !made[folder] {
				made[folder] = true
				if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: folder + "/", Mode: 0o755}); err != nil {
					return nil, err
				}
			}
		}
		content, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(source)
		if err != nil {
			return nil, err
		}
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		if err := archive.WriteHeader(&tar.Header{Name: path.Clean(target), Mode: mode, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := archive.Write(content); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), archive.Close()
}

func folders(target string) []string {
	var all []string
	for folder := path.Dir(path.Clean(target)); folder != "." && folder != "/"; folder = path.Dir(folder) {
		all = append([]string{folder}, all...)
	}
	return all
}

func pairs(text string) map[string]string {
	all := map[string]string{}
	for _, pair := range strings.Split(text, ",") {
		if key, value, found := strings.Cut(pair, "="); found {
			all[key] = value
		}
	}
	return all
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func describe(mediaType string, content []byte) descriptor {
	return descriptor{MediaType: mediaType, Digest: digest(content), Size: len(content)}
}

func write(out string, index []byte, blobs ...[]byte) (err error) {
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() {
		if closed := file.Close(); err == nil {
			err = closed
		}
	}()
	archive := tar.NewWriter(file)
	if err := add(archive, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := add(archive, "index.json", index); err != nil {
		return err
	}
	for _, blob := range blobs {
		if err := add(archive, "blobs/sha256/"+strings.TrimPrefix(digest(blob), "sha256:"), blob); err != nil {
			return err
		}
	}
	return archive.Close()
}

func add(archive *tar.Writer, name string, content []byte) error {
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := io.Copy(archive, bytes.NewReader(content))
	return err
}
