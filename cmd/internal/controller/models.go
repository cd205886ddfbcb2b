package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

// inspector reads the attributes of models from where they are. A manifest is a
// tenant's and the controller's network is not: it looks at public addresses
// alone.
type inspector struct {
	store *artifact.Store
	turn  chan struct{}
}

// inspected is how many models are looked at at once. It leaves most of
// [workers] to services whose models answer: a source that swallows
// connections takes all of inspectTimeout, each time it is asked.
const inspected = 4

// inspectTimeout bounds how long a model's own files may take to read.
const inspectTimeout = 15 * time.Second

func newInspector(dir string, internal bool, log logger) (inspector, error) {
	// Few attempts: the fleet looks again by itself, and later each time.
	store, err := artifact.New(artifact.Config{Dir: dir, Attempts: 2, RetryWait: 200 * time.Millisecond}, modelClient(internal), log)
	return inspector{store, make(chan struct{}, inspected)}, err
}

// Inspect implements fleet.Models.
func (i inspector) Inspect(ctx context.Context, files service.Files) (service.Attributes, error) {
	uri := files.URI
	if artifact.Local(uri) {
		return service.Attributes{}, missing{fmt.Errorf("%s names a file of one machine, and pods run on any: put the model where all can read it, such as s3://, gs://, hf:// or pvc://", artifact.Redact(uri))}
	}
	if strings.HasPrefix(uri, "pvc://") {
		return service.Attributes{}, fmt.Errorf("%s is a volume, which pods alone can read: name the model's format (spec.model.format, a BaseModel's modelFormat)", artifact.Redact(uri))
	}
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	default:
		return service.Attributes{}, errBusy{}
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	f, err := i.store.Peek(ctx, artifact.Request{URI: uri})
	if ctx.Err() != nil {
		err = fmt.Errorf("%s did not answer within %s: %w", artifact.Redact(uri), inspectTimeout, err)
	}
	if err != nil {
		var refused *internalError
		if errors.Is(err, fs.ErrNotExist) || errors.As(err, &refused) {
			err = missing{err}
		}
		return service.Attributes{}, err
	}
	if from, ok := f.From["frameworkversion"]; ok {
		f.From["framework.version"] = from
	}
	return service.Attributes{Format: service.NamedVersion{Name: f.Format}, Framework: service.NamedVersion{Name: f.Framework, Version: f.FrameworkVersion},
		Architecture: f.Architecture, Quantization: f.Quantization, Parameters: f.Parameters, AdapterRank: f.AdapterRank, Environment: f.Environment, From: f.From}, nil
}

// errBusy is the error for a model that was not inspected because too many
// others were.
type errBusy struct{}

func (errBusy) Error() string { return "as many models are looked at as may be at once" }
func (errBusy) Busy() bool    { return true }

// missing marks an error after which the model can certainly not be served from
// its address.
type missing struct{ error }

func (missing) NotExist() bool  { return true }
func (m missing) Unwrap() error { return m.error }

// modelClient asks for models. Unless internal addresses are allowed, every
// connection is checked by the address it goes to, after names are resolved,
// so that a name that changes between two looks gains nothing; and no proxy is
// asked, which would resolve names itself.
func modelClient(internal bool) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if !internal {
		d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, Control: publicOnly}
		t.DialContext, t.Proxy = d.DialContext, nil
	}
	return &http.Client{Transport: t}
}

func publicOnly(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%s: not an address: %w", address, err)
	}
	if network.Internal(at.Addr()) {
		return &internalError{at.Addr()}
	}
	return nil
}

// internalError is the error for a model's address that is internal and not
// read.
type internalError struct{ at netip.Addr }

// Error returns a message with the remedy.
func (e *internalError) Error() string {
	return fmt.Sprintf("%s is an internal address, which the controller does not read models from: use a public one, or start the controller with --allow-internal-models", e.at)
}

// The image of this release with ONNX Runtime.
const (
	onnxSuffix = "-onnx"
	// onnxWord stands for it in the catalog.
	onnxWord = shape.OwnImage + onnxSuffix
	// noImage as --onnx-image is none.
	noImage = "none"
)

// onnxImage is the image with ONNX Runtime that is published beside image; "" where
// it cannot be told, because a digest is another's.
func onnxImage(image string) string {
	if strings.Contains(image, "@") {
		return ""
	}
	at := len(image)
	if colon := strings.LastIndexByte(image, ':'); colon > strings.LastIndexByte(image, '/') {
		at = colon
	}
	return image[:at] + onnxSuffix + image[at:]
}
