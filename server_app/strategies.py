"""The methods as Flower strategies with typed keyword arguments.

    from fedkeel import FedPCD
    strategy = FedPCD(tau=0.02, history=10, fraction_train=0.1)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=50)

A strategy takes the settings of its method and `StrategyOptions`, all by name. Clients that return
"arrays" and "num-examples" are enough, unless the method has a client half.
"""

from collections.abc import Mapping
from typing import Unpack

from common import methods
from server_app import robust_strategies  # noqa: F401 - STRATEGIES has its classes
from server_app.ready_strategy import ReadyStrategy, StrategyOptions


class AFL(ReadyStrategy):
    """The cohort's displacements, weighted by lambda; then lambda follows the losses."""

    method_type = methods.AFL

    def __init__(
        self,
        *,
        eta_lambda: float = methods.AFL.eta_lambda,
        average: bool = methods.AFL.average,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.AFL(eta_lambda=eta_lambda, average=average), **options)


class Craft(ReadyStrategy):
    """Solve for the direction whose product with each unit displacement is the client's share."""

    method_type = methods.Craft

    def __init__(
        self,
        *,
        eta: float = methods.Craft.eta,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.Craft(eta=eta), **options)


class Ditto(ReadyStrategy):
    """FedAvg; a client's own model v minimises its loss + lambda/2 |v - w_received|^2."""

    method_type = methods.Ditto

    def __init__(
        self,
        *,
        uniform: bool = methods.Ditto.uniform,
        lam: float = methods.Ditto.lam,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.Ditto(uniform=uniform, lam=lam), **options)


class FedAdam(ReadyStrategy):
    """One step of Adam per round, with the cohort's mean displacement as the gradient."""

    method_type = methods.FedAdam

    def __init__(
        self,
        *,
        eta: float = methods.FedAdam.eta,
        beta1: float = methods.FedAdam.beta1,
        beta2: float = methods.FedAdam.beta2,
        tau: float = methods.FedAdam.tau,
        uniform: bool = methods.FedAdam.uniform,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(
            methods.FedAdam(eta=eta, beta1=beta1, beta2=beta2, tau=tau, uniform=uniform), **options
        )


class FedAvg(ReadyStrategy):
    """The mean displacement of the cohort; the weights are shares of the participants' data."""

    method_type = methods.FedAvg

    def __init__(
        self,
        *,
        uniform: bool = methods.FedAvg.uniform,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.FedAvg(uniform=uniform), **options)


class FedDyn(ReadyStrategy):
    """A linear and a proximal term on the client, the mean of the G_i on the server."""

    method_type = methods.FedDyn

    def __init__(
        self,
        *,
        alpha: float = methods.FedDyn.alpha,
        evaluate: str = methods.FedDyn.evaluate,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.FedDyn(alpha=alpha, evaluate=evaluate), **options)


class FedFV(ReadyStrategy):
    """The uniform mean of displacements that no longer conflict, at the plain mean's length."""

    method_type = methods.FedFV

    def __init__(
        self,
        *,
        alpha: float = methods.FedFV.alpha,
        tau: int = methods.FedFV.tau,
        window: str = methods.FedFV.window,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.FedFV(alpha=alpha, tau=tau, window=window), **options)


class FedHEAL(ReadyStrategy):
    """The mean of what counts, coordinate by coordinate, weighted by distance with momentum."""

    method_type = methods.FedHEAL

    def __init__(
        self,
        *,
        threshold: float = methods.FedHEAL.threshold,
        beta: float = methods.FedHEAL.beta,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.FedHEAL(threshold=threshold, beta=beta), **options)


class FedLF(ReadyStrategy):
    """Minimum-norm direction of every layer, at the uniform mean's length."""

    method_type = methods.FedLF

    def __init__(
        self,
        *,
        released: bool = methods.FedLF.released,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.FedLF(released=released), **options)


class FedMGDA(ReadyStrategy):
    """Minimum-norm combination of the unit displacements, within epsilon of the shares."""

    method_type = methods.FedMGDA

    def __init__(
        self,
        *,
        epsilon: float = methods.FedMGDA.epsilon,
        eta_over_lr: float = methods.FedMGDA.eta_over_lr,
        rescale: bool = methods.FedMGDA.rescale,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(
            methods.FedMGDA(epsilon=epsilon, eta_over_lr=eta_over_lr, rescale=rescale), **options
        )


class FedNova(ReadyStrategy):
    """The mean of the displacements per local step, times the effective number of steps."""

    method_type = methods.FedNova

    def __init__(
        self,
        *,
        uniform: bool = methods.FedNova.uniform,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.FedNova(uniform=uniform), **options)


class FedPCD(ReadyStrategy):
    """Project the unit mean onto the half-spaces of all remembered clients."""

    method_type = methods.FedPCD

    def __init__(
        self,
        *,
        tau: float = methods.FedPCD.tau,
        history: int = methods.FedPCD.history,
        normalise: bool = methods.FedPCD.normalise,
        primary: bool = methods.FedPCD.primary,
        solver: str = methods.FedPCD.solver,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(
            methods.FedPCD(
                tau=tau, history=history, normalise=normalise, primary=primary, solver=solver
            ),
            **options,
        )


class FedProx(ReadyStrategy):
    """Each client minimises its loss + mu/2 |w - w_received|^2; the server averages."""

    method_type = methods.FedProx

    def __init__(
        self,
        *,
        uniform: bool = methods.FedProx.uniform,
        mu: float = methods.FedProx.mu,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.FedProx(uniform=uniform, mu=mu), **options)


class FedPVR(ReadyStrategy):
    """Plain SGD on the feature extractor, variance-reduced SGD on `block`."""

    method_type = methods.FedPVR

    def __init__(
        self,
        *,
        block: str = methods.FedPVR.block,
        uniform: bool = methods.FedPVR.uniform,
        feature_momentum: float = methods.FedPVR.feature_momentum,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(
            methods.FedPVR(block=block, uniform=uniform, feature_momentum=feature_momentum),
            **options,
        )


class FedPW(ReadyStrategy):
    """Thin out the updates, mix two sets of weights, enlarge what the clients agree on."""

    method_type = methods.FedPW

    def __init__(
        self,
        *,
        beta: float = methods.FedPW.beta,
        drop: float = methods.FedPW.drop,
        stride: int = methods.FedPW.stride,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.FedPW(beta=beta, drop=drop, stride=stride), **options)


class QFFL(ReadyStrategy):
    """Displacements weighted by F_i^q, with a step whose length is estimated from theirs."""

    method_type = methods.QFFL

    def __init__(
        self,
        *,
        q: float = methods.QFFL.q,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.QFFL(q=q), **options)


class Scaffold(ReadyStrategy):
    """Every coordinate gets a variate; models are averaged with equal weights, as in the paper."""

    method_type = methods.Scaffold

    def __init__(self, **options: Unpack[StrategyOptions]) -> None:
        super().__init__(methods.Scaffold(), **options)


STRATEGIES: Mapping[str, type[ReadyStrategy]] = {
    strategy.method_type.name: strategy for strategy in ReadyStrategy.__subclasses__()
}
