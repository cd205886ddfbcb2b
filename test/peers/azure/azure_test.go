//go:build peers

// Package azure fetches models from Azurite, Microsoft's emulator of Azure
// Storage, which checks signatures as the service does.
package azure

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/test/loopback"
)

// key is of Azurite's one account.
const key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

// start runs Azurite and returns the account's endpoint. It lets everybody put
// blobs into the container named public; the others want the key.
func start(t *testing.T) string {
	t.Helper()
	program := os.Getenv("ROUNDHOUSE_AZURITE")
	if program == "" {
		t.Fatal("ROUNDHOUSE_AZURITE is not set: `make test-peers` installs Azurite and sets it")
	}
	address := loopback.Reserve(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--blobHost", "127.0.0.1", "--blobPort", port, "--location", t.TempDir(), "--silent", "--disableTelemetry")
	var logs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &logs, &logs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	endpoint := "http://" + address + "/devstoreaccount1"
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if resp, err := http.Get(endpoint); err == nil {
			_ = resp.Body.Close()
			return endpoint
		}
		if time.Now().After(deadline) {
			t.Fatalf("Azurite does not answer:\n%s", logs.Bytes())
		}
	}
}

// put sends what the account's key signs; the signing is the artifact
// package's own, so what it is checked by is Azurite.
func put(t *testing.T, endpoint, path, query string, body []byte, header ...string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPut, endpoint+path+query, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if len(body) > 0 {
		req.Header.Set("Content-Length", fmt.Sprint(len(body)))
	}
	artifact.SignAzure(req, "devstoreaccount1", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("PUT %s: %s %s", path, resp.Status, resp.Header.Get("X-Ms-Error-Code"))
	}
}

func TestAzurite(t *testing.T) {
	endpoint := start(t)
	put(t, endpoint, "/models", "?restype=container", nil)
	large := make([]byte, 40<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(large)
	files := map[string][]byte{"config.json": []byte("{}"), "model.safetensors": large, "sub dir/é+&.txt": []byte("odd")}
	for name, content := range files {
		put(t, endpoint, "/models/m/"+strings.ReplaceAll(url.PathEscape(name), "%2F", "/"), "", content, "X-Ms-Blob-Type", "BlockBlob")
	}
	for name, env := range map[string]map[string]string{
		"connection string": {"AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=" + key + ";BlobEndpoint=" + endpoint + ";"},
		"key":               {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=devstoreaccount1;BlobEndpoint=" + endpoint, "AZURE_STORAGE_KEY": key},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range env {
				t.Setenv(k, v)
			}
			s, err := artifact.New(artifact.Config{Dir: t.TempDir()}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, uri := range []string{"az://models/m", "https://devstoreaccount1.blob.core.windows.net/models/m"} {
				dir, err := s.Fetch(t.Context(), artifact.Request{URI: uri}, nil)
				if err != nil {
					t.Fatal(err)
				}
				for name, want := range files {
					if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%s: %s: %d bytes, %v", uri, name, len(got), err)
					}
				}
			}
		})
	}
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=devstoreaccount1;BlobEndpoint="+endpoint+";AccountKey=bm8=")
	s, err := artifact.New(artifact.Config{Dir: t.TempDir()}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Fetch(t.Context(), artifact.Request{URI: "az://models/m"}, nil); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("with a wrong key: %v", err)
	}
}
