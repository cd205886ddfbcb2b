package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// keyVariable is the environment variable with the key that signs, a PEM of
// PKCS #8 or SEC 1 with an ECDSA key on P-256.
const keyVariable = "ROUNDHOUSE_SIGNING_KEY"

// signer signs as `cosign sign-blob --key` does: ECDSA over SHA-256, ASN.1.
type signer struct{ key *ecdsa.PrivateKey }

func signerFromEnv() (*signer, error) {
	text := os.Getenv(keyVariable)
	if text == "" {
		return nil, nil
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM", keyVariable)
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return &signer{key}, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	ec, ok := key.(*ecdsa.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s: the PEM's %q holds no ECDSA key", keyVariable, block.Type)
	}
	return &signer{ec}, nil
}

// Sign implements dsse.Signer.
func (s *signer) Sign(_ context.Context, data []byte) ([]byte, error) {
	sum := sha256.Sum256(data)
	return ecdsa.SignASN1(rand.Reader, s.key, sum[:])
}

// KeyID implements dsse.Signer.
func (s *signer) KeyID() (string, error) { return dsse.SHA256KeyID(s.key.Public()) }

// seal writes SHA256SUMS and the provenance and signs both, and every file
// besides, if there is a key.
func (r *release) seal(ctx context.Context) error {
	sums, err := r.checksums()
	if err != nil {
		return err
	}
	statement, err := r.provenance(sums)
	if err != nil {
		return err
	}
	if r.key == nil {
		if err := os.WriteFile(r.path("provenance.json"), statement, 0o644); err != nil {
			return err
		}
	} else if err := r.signStatement(ctx, statement); err != nil {
		return err
	}
	if sums, err = r.checksums(); err != nil { // with the provenance
		return err
	}
	var list bytes.Buffer
	for _, s := range sums {
		fmt.Fprintf(&list, "%s  %s\n", s.sha256, s.name)
	}
	if err := os.WriteFile(r.path("SHA256SUMS"), list.Bytes(), 0o644); err != nil {
		return err
	}
	if r.key == nil {
		return nil
	}
	return r.signFiles(ctx, append(sums, checksum{name: "SHA256SUMS"}))
}

// signStatement writes the statement as a signed DSSE envelope.
func (r *release) signStatement(ctx context.Context, statement []byte) error {
	signing, err := dsse.NewEnvelopeSigner(r.key)
	if err != nil {
		return err
	}
	envelope, err := signing.SignPayload(ctx, "application/vnd.in-toto+json", statement)
	if err != nil {
		return err
	}
	line, err := json.Marshal(envelope)
	if err != nil {
		return err
	}
	return os.WriteFile(r.path("provenance.intoto.jsonl"), append(line, '\n'), 0o644)
}

// signFiles writes FILE.sig for each file, and the public key.
func (r *release) signFiles(ctx context.Context, all []checksum) error {
	for _, f := range all {
		data, err := os.ReadFile(r.path(f.name))
		if err != nil {
			return err
		}
		sig, err := r.key.Sign(ctx, data)
		if err != nil {
			return err
		}
		if err := os.WriteFile(r.path(f.name+".sig"), []byte(base64.StdEncoding.EncodeToString(sig)+"\n"), 0o644); err != nil {
			return err
		}
	}
	public, err := x509.MarshalPKIXPublicKey(r.key.key.Public())
	if err != nil {
		return err
	}
	return os.WriteFile(r.path("roundhouse.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644)
}

type checksum struct{ name, sha256 string }

// checksums returns the SHA-256 of every file of the release, by name.
func (r *release) checksums() ([]checksum, error) {
	paths, err := filepath.Glob(r.path("*"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var all []checksum
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			return nil, err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		all = append(all, checksum{filepath.Base(p), hex.EncodeToString(h.Sum(nil))})
	}
	return all, nil
}

// provenance returns an in-toto statement (v1) with a SLSA provenance (v1): what
// was built, of which commit, with which Go.
func (r *release) provenance(sums []checksum) ([]byte, error) {
	type object = map[string]any
	var subjects []object
	for _, s := range sums {
		subjects = append(subjects, object{"name": s.name, "digest": object{"sha256": s.sha256}})
	}
	var platforms []string
	for _, p := range r.platforms {
		platforms = append(platforms, p.os+"/"+p.arch)
	}
	text, err := json.MarshalIndent(object{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType":          "https://roundhouse.dev/make-release/v1",
				"externalParameters": object{"version": r.version.semver, "platforms": platforms, "url": r.url},
				"internalParameters": object{"go": strings.TrimPrefix(runtime.Version(), "go")},
				"resolvedDependencies": []object{
					{"uri": "git+https://roundhouse.dev/roundhouse", "digest": object{"gitCommit": r.version.commit}},
				},
			},
			"runDetails": object{
				"builder": object{"id": "https://roundhouse.dev/make-release/v1"}, // no times: they would differ between builds
			},
		},
	}, "", "  ")
	return append(text, '\n'), err
}
