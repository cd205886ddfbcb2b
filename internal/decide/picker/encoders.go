package picker

// Encoder is a server that computes pictures, sounds and videos for those that answer.
type Encoder struct {
	Hash     uint64 // NameHash of its name
	InFlight int    // what it has from us. >= 0
}

// Encoders returns for each entry, known by the hash of its content, which of all is to
// compute it; nil where there are none. It counts the entries in all.
//
// It is rendezvous hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam,
// Consistent hashing with bounded loads, 2018): the same entry goes to the same encoder,
// which may still have it, unless that one has over a quarter more than the mean. So the
// entries of one request are spread while little is in flight.
func Encoders(all []Encoder, entries []uint64) (chosen []int) {
	if len(all) == 0 || len(entries) == 0 {
		return nil
	}
	total := 0
	for i := range all {
		total += all[i].InFlight
	}
	chosen = make([]int, len(entries))
	for i, entry := range entries {
		best, most := -1, uint64(0)
		for n := range all {
			if e := &all[n]; 4*len(all)*e.InFlight <= 5*total {
				if h := mix(entry ^ e.Hash); best < 0 || h > most {
					best, most = n, h
				}
			}
		}
		all[best].InFlight++
		total++
		chosen[i] = best
	}
	return chosen
}
