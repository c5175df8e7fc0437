"""Three forked processes that serve tasks from a queue. Each task goes through strings of their parent's, from the first
page to the last, and changes reference counts on each."""

import hashlib
import multiprocessing

STRINGS = 250_000
shared = [hashlib.md5(str(number).encode()).hexdigest() * 2 for number in range(STRINGS)]


def serve(tasks: multiprocessing.Queue, answers: multiprocessing.Queue) -> None:
    """Answer tasks until there is none."""
    for number in iter(tasks.get, None):
        chosen = sorted(shared[number::11])
        answers.put((number, hashlib.md5("".join(chosen).encode()).hexdigest()))


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    tasks, answers = context.Queue(), context.Queue()
    workers = [context.Process(target=serve, args=(tasks, answers)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for number in range(60):
        tasks.put(number)
    found = sorted(answers.get() for _ in range(60))
    for _ in workers:
        tasks.put(None)
    for worker in workers:
        worker.join()
    print(hashlib.md5(repr(found).encode()).hexdigest())
