package containers

import "testing"

func TestKilledIn(t *testing.T) {
	const id = "28f42b153ec00ac2551e17497cace798e60423598450eba2b24f878fde72ccf1"
	line := "4,2000,100,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=libpod-" + id + ",mems_allowed=0,oom_memcg=/libpod_parent/libpod-" + id + ",task_memcg=/libpod_parent/libpod-" + id + ",task=eat,pid=22083,uid=0"
	for text, want := range map[string]bool{
		line: true,
		"4,1,1,-;oom-kill:oom_memcg=/other,task_memcg=/libpod-" + id: false,
		"4,1,1,-;a log line of " + id:                                false,
	} {
		if killedIn(text, id) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}
