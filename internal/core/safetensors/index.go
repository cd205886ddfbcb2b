package safetensors

import (
	"slices"
	"strings"
)

const (
	// IndexName is what libraries call the index of a model in several files.
	IndexName = "model.safetensors.index.json"
	// MaxIndex bounds an index; 9 MiB are the largest seen.
	MaxIndex = 32 << 20
)

// Index is which file of a model holds which tensor.
type Index struct {
	// TotalSize is the number of bytes of all tensors, TotalParameters that of
	// all weights; 0 where the index does not have it.
	TotalSize, TotalParameters int64
	// Files are the names of the model's files, sorted. They are plain names
	// of files beside the index.
	Files []string
	// WeightMap is the file's name by the tensor's.
	WeightMap map[string]string
}

// ParseIndex reads an index. Members that are not known are passed over.
func ParseIndex(raw []byte) (*Index, error) {
	if len(raw) > MaxIndex {
		return nil, malformed("an index of %d bytes; at most %d are read", len(raw), MaxIndex)
	}
	s, x := &scanner{b: raw}, &Index{}
	err := s.object(func(key string) error {
		switch key {
		case "metadata":
			return s.totals(x)
		case "weight_map":
			return s.weightMap(x)
		}
		return s.skip(1)
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

// totals reads the index's metadata, whose figures Python may have written as
// fractions.
func (s *scanner) totals(x *Index) error {
	if s.next() != '{' {
		return s.skip(1)
	}
	return s.object(func(key string) error {
		c := s.next()
		if key != "total_size" && key != "total_parameters" || c < '0' || c > '9' {
			return s.skip(2)
		}
		v, err := s.number()
		if err != nil || v >= 1e18 {
			return err
		}
		if key == "total_size" {
			x.TotalSize = int64(v)
		} else {
			x.TotalParameters = int64(v)
		}
		return nil
	})
}

func (s *scanner) weightMap(x *Index) error {
	if x.WeightMap != nil {
		return s.fail("weight_map is there twice")
	}
	x.WeightMap = map[string]string{}
	names := map[string]string{} // one copy of each file's name
	err := s.object(func(tensor string) error {
		file, err := s.text()
		if err != nil {
			return err
		}
		if _, twice := x.WeightMap[tensor]; twice {
			return malformed("%s: is there twice", quote(tensor))
		}
		if !plainName(file) {
			return malformed("%s: is said to be in %s, which is no name of a file beside the index", quote(tensor), quote(file))
		}
		if _, seen := names[file]; !seen {
			names[file] = file
			x.Files = append(x.Files, file)
		}
		x.WeightMap[tensor] = names[file]
		return nil
	})
	slices.Sort(x.Files)
	return err
}

// plainName reports whether a name stays in the folder of the index.
func plainName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 255 && !strings.ContainsAny(name, "/\\\x00")
}

// Check compares the index with the headers of its files, by the files' names:
// every tensor must be where it is said to be.
func (x *Index) Check(headers map[string]*Header) error {
	for _, file := range x.Files {
		if headers[file] == nil {
			return malformed("the index names %s, which is not there", quote(file))
		}
	}
	here := make(map[string]map[string]bool, len(x.Files))
	for file, h := range headers {
		here[file] = make(map[string]bool, len(h.Tensors))
		for i := range h.Tensors {
			here[file][h.Tensors[i].Name] = true
		}
	}
	for tensor, file := range x.WeightMap {
		if !here[file][tensor] {
			return malformed("the index says that %s is in %s, and it is not", quote(tensor), quote(file))
		}
	}
	return nil
}
