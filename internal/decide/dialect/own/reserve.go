package own

import (
	"regexp"
	"slices"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
	"roundhouse.dev/roundhouse/internal/decide/reserve"
)

// readReserve checks a Reserve. It has no part in the hub: the controller of a
// cluster takes it as it is in the API.
func readReserve(r *manifest.Reader, m *api.Reserve, o *manifest.Object) {
	o.Kind, o.Key = manifest.KindReserve, r.Meta(m.Metadata, false, false).Key
	r.OneMachine("", true, "a Reserve has no effect on one machine: it keeps the nodes of a cluster ready")
	spec := &m.Spec
	if len(spec.NodeSelector) > 0 {
		manifest.CheckSelector(r.Report, "spec.nodeSelector", spec.NodeSelector)
	}
	manifest.CheckAtMost(r.Report, "spec.imagePullSecrets", len(spec.ImagePullSecrets), reserve.MaxPullSecrets)
	for i, name := range spec.ImagePullSecrets {
		manifest.CheckName(r.Report, strict.Index("spec.imagePullSecrets", i), name, true)
	}
	if spec.Placeholders == nil && spec.Images == nil {
		r.Errorf("spec", "asks for nothing: write placeholders, images or both")
	}
	if spec.Placeholders != nil {
		checkPlaceholders(r, "spec.placeholders", spec.Placeholders)
	}
	if spec.Images != nil {
		checkReserveImages(r, "spec.images", spec.Images)
	}
}

func checkPlaceholders(r *manifest.Reader, path string, p *api.Placeholders) {
	ways := 0
	for _, stated := range []bool{p.Count != nil, p.Percent != nil, len(p.Ladder) > 0} {
		if stated {
			ways++
		}
	}
	if ways != 1 {
		r.Errorf(path, "write how many there are, as exactly one of count, percent and ladder")
	}
	checkRange(r, path+".count", p.Count, 0, reserve.MaxPlaceholders)
	checkRange(r, path+".percent", p.Percent, 1, 100)
	checkRange(r, path+".max", p.Max, 1, reserve.MaxPlaceholders)
	manifest.CheckAtMost(r.Report, path+".ladder", len(p.Ladder), reserve.MaxLadder)
	for i, s := range p.Ladder {
		at := strict.Index(path+".ladder", i)
		checkRange(r, at+".fromNodes", &s.FromNodes, 0, manifest.MaxWeight)
		checkRange(r, at+".count", &s.Count, 0, reserve.MaxPlaceholders)
	}
	if len(p.Resources) == 0 {
		r.Errorf(path+".resources", "is missing: write what one placeholder holds, such as nvidia.com/gpu: 1")
	}
	manifest.CheckAtMost(r.Report, path+".resources", len(p.Resources), reserve.MaxResources)
	for name, q := range p.Resources {
		manifest.CheckLabelName(r.Report, strict.Key(path+".resources", name), name)
		if q.Sign() <= 0 {
			r.Errorf(strict.Key(path+".resources", name), "%s is not more than 0", q.String())
		}
	}
}

func checkRange(r *manifest.Reader, path string, n *int, low, high int) {
	if n != nil && (*n < low || *n > high) {
		r.Errorf(path, "%d is not between %d and %d", *n, low, high)
	}
}

// maxImageName bounds the name of an image.
const maxImageName = 1024

var imageName = regexp.MustCompile(`^[!-~]+$`)

func checkReserveImages(r *manifest.Reader, path string, in *api.ReserveImages) {
	if len(in.From)+len(in.Names) == 0 {
		r.Errorf(path, "names no images: write from: [services], from: [runtimes], or names")
	}
	for i, from := range in.From {
		at := strict.Index(path+".from", i)
		if all := []string{reserve.FromServices, reserve.FromRuntimes}; !slices.Contains(all, from) {
			r.Errorf(at, "unknown source %q: write one of %s", manifest.Clip(from), manifest.Joined(all))
		} else if slices.Contains(in.From[:i], from) {
			r.Errorf(at, "%q is listed twice", from)
		}
	}
	manifest.CheckAtMost(r.Report, path+".names", len(in.Names), reserve.MaxImages)
	for i, name := range in.Names {
		at := strict.Index(path+".names", i)
		if !imageName.MatchString(name) || len(name) > maxImageName {
			r.Errorf(at, "%q is no image: write a name such as registry.example/vllm:v1", manifest.Clip(name))
		} else if slices.Contains(in.Names[:i], name) {
			r.Errorf(at, "%q is listed twice", manifest.Clip(name))
		}
	}
	checkRange(r, path+".nodesAtOnce", in.NodesAtOnce, 1, reserve.MaxNodesAtOnce)
}
