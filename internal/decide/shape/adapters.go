package shape

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	// adaptersPath is where a container has a folder for each adapter.
	adaptersPath = "/mnt/adapters"
	// adapterPrefix begins the names of an adapter's volume and init container.
	adapterPrefix = "roundhouse-adapter-"
)

// adapters puts the revision's adapters into the pod.
func (r *renderer) adapters(pod *corev1.PodSpec, main *corev1.Container) error {
	list := r.rev.Model.Adapters
	if r.rev.Model.Verbatim || !r.bearsModel() {
		return nil
	}
	for i := len(list) - 1; i >= 0; i-- { // init containers are put in front
		name := adapterPart(list[i].Name)
		if err := r.bring(pod, main, files{what: fmt.Sprintf("adapter %q", list[i].Name), uri: list[i].URI,
			at: path.Join(adaptersPath, list[i].Name), volume: name, fetcher: name}); err != nil {
			return err
		}
	}
	return nil
}

// adapterPaths are where the main container has the adapters.
func (r *renderer) adapterPaths() map[string]string {
	out := make(map[string]string, len(r.rev.Model.Adapters))
	for _, a := range r.rev.Model.Adapters {
		if out[a.Name] = path.Join(adaptersPath, a.Name); r.rev.Model.Verbatim {
			out[a.Name] = a.URI
		}
	}
	return out
}

// adapterPart names what an adapter has in a pod, as a label of 63 characters.
func adapterPart(adapter string) string {
	return adapterPrefix + fit(adapter, strings.ReplaceAll(adapter, ".", "-"), maxAdapterPart)
}

// maxAdapterPart is how much of a label an adapter's name may take.
const maxAdapterPart = 63 - len(adapterPrefix)

// AdapterOf is the adapter that an init container brings, by a name that a long
// one is cut to.
func AdapterOf(container string) (adapter string, ok bool) {
	return strings.CutPrefix(container, adapterPrefix)
}
