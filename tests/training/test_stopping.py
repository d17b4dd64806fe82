"""How a training that was stopped is seen from outside."""

import signal

from sphereface2.training.stopping import StoppedError, exit_code


def test_a_shell_sees_which_signal_ended_the_work() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, None)
    assert [exit_code(number) for number in numbers] == [130, 143, 129, 130]
    assert StoppedError("stopped", number=signal.SIGTERM).exit_code == 143
